"""``python -m django_dispatch.alive``: ask the dispatcher on this host over HTTP, for probes that run a program.

It imports neither Django nor the project, and needs no database. Exit code 0 means yes, 1 no, or no answer.
``dispatcherctl alive --node`` asks in the same way; with answer_early() in ``manage.py``, in as little time.
"""

import argparse
import json
import socket
import sys
from collections.abc import Sequence
from typing import Any

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8070
LARGEST_ANSWER = 65_536
PATIENCE_SECONDS = 2.0


def main() -> int:
    """Ask, show the answer, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m django_dispatch.alive", description="Is the dispatcher alive?")
    parser.add_argument("--ready", action="store_true", help="ask instead whether it takes up runs")
    parser.add_argument("--node", help="its name: an answer from another one is none")
    parser.add_argument("--host", default=DEFAULT_HOST, help="its --metrics-host. Default: %(default)s")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="its --metrics-port. Default: %(default)s")
    parser.add_argument("--timeout", type=float, default=PATIENCE_SECONDS, help="seconds. Default: %(default)s")
    options = parser.parse_args()
    try:
        path = "/readyz" if options.ready else "/healthz"
        status, body = ask(options.host, options.port, path, options.timeout, node=options.node)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"No answer from port {options.port} of {options.host}: {error}.\n")
        return 1
    sys.stdout.write(body)
    return 0 if status == 200 else 1


def answer_early(words: Sequence[str]) -> None:
    """Answer ``dispatcherctl alive --node NAME`` and exit with 0 if the dispatcher says that it is well.

    For a project's ``manage.py``, before it imports Django: ``answer_early(sys.argv[1:])``. Returns at any other
    command, and if there is no such answer from ``--metrics-port`` (8070) of this host: then Django's command says why.
    """
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--node")
    parser.add_argument("--metrics-port", type=int, default=DEFAULT_PORT)
    parser.add_argument("--json", action="store_true")
    try:
        options, others = parser.parse_known_args(words)
        if others != ["dispatcherctl", "alive"] or not options.node:
            return
        answer = ask_health(DEFAULT_HOST, options.metrics_port, PATIENCE_SECONDS, node=options.node)
    except (argparse.ArgumentError, OSError, ValueError):
        return
    if answer["is_healthy"]:
        from . import output

        sys.stdout.write((output.as_json if options.json else output.as_table)([answer]) + "\n")
        sys.exit()


def ask(host: str, port: int, path: str, timeout_seconds: float, *, node: str | None = None) -> tuple[int, str]:
    """Return status and body of what a GET brings.

    Raises OSError, or ValueError if it is no HTTP, or not of the dispatcher that is named ``node``.
    """
    # By hand: to import http.client takes longer than all the rest.
    with socket.create_connection((host, port), timeout_seconds) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while len(answer) < LARGEST_ANSWER and (data := connection.recv(LARGEST_ANSWER)):
            answer += data
    head, _, body = answer.decode(errors="replace").partition("\r\n\r\n")
    protocol, _, status = head.partition(" ")
    if not protocol.startswith("HTTP/1"):
        raise ValueError("it speaks no HTTP")
    if node is not None and (who := _document(body).get("node")) != node:
        raise ValueError(f"it is not {node!r} but {who!r}" if who else f"it is not {node!r}")
    return int(status[:3]), body


def ask_health(host: str, port: int, timeout_seconds: float, *, node: str) -> dict[str, Any]:
    """Return what the dispatcher of this name answers to ``alive``. Raises as ask() does."""
    status, body = ask(host, port, "/healthz", timeout_seconds, node=node)
    return {"is_healthy": status == 200, "late": list(_document(body).get("failing", ())), "node_id": node}


def _document(body: str) -> dict[str, Any]:
    """The object that the body is; an empty one if it is none."""
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


if __name__ == "__main__":
    sys.exit(main())
