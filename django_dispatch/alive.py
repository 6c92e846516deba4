"""``python -m django_dispatch.alive``: ask the dispatcher on this host over HTTP, for probes that run a program.

It imports neither Django nor the project, and needs no database. Exit code 0 means yes, 1 no, or no answer.
"""

import argparse
import socket
import sys

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8070
LARGEST_ANSWER = 65_536


def main() -> int:
    """Ask, show the answer, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m django_dispatch.alive", description="Is the dispatcher alive?")
    parser.add_argument("--ready", action="store_true", help="ask instead whether it takes up runs")
    parser.add_argument("--host", default=DEFAULT_HOST, help="its --metrics-host. Default: %(default)s")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="its --metrics-port. Default: %(default)s")
    parser.add_argument("--timeout", type=float, default=2.0, help="seconds. Default: %(default)s")
    options = parser.parse_args()
    try:
        status, body = ask(options.host, options.port, "/readyz" if options.ready else "/healthz", options.timeout)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"No answer from port {options.port} of {options.host}: {error}\n")
        return 1
    sys.stdout.write(body)
    return 0 if status == 200 else 1


def ask(host: str, port: int, path: str, timeout_seconds: float) -> tuple[int, str]:
    """Return status and body of what a GET brings. Raises OSError, or ValueError if it is no HTTP."""
    # By hand: to import http.client takes longer than all the rest.
    with socket.create_connection((host, port), timeout_seconds) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while len(answer) < LARGEST_ANSWER and (data := connection.recv(LARGEST_ANSWER)):
            answer += data
    head, _, body = answer.partition(b"\r\n\r\n")
    protocol, _, status = head.partition(b" ")
    if not protocol.startswith(b"HTTP/1"):
        raise ValueError("it speaks no HTTP")
    return int(status[:3]), body.decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
