"""``manage.py dispatcherctl``: ask running dispatchers, or tell them what to do, and show what each replies."""

import argparse
import json
import sys
import time
from typing import Any
from uuid import uuid4

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ... import alive, checks, conf, output
from ...control import Replies, ask
from ...control.client import TIMEOUT_SECONDS
from ...exceptions import ControlError
from .. import database_commands, streams

LOOK_SECONDS = 0.1
SHARE_HERE = 0.4  # of the timeout: who is there answers within milliseconds
ENDS = {"SUCCESSFUL": 0, "FAILED": 1, "CANCELLED": 1}

PLAIN = {
    "workers": "Show each executor: pid, kind, state, runs, age, runs finished, memory.",
    "status": "Show everything that does not change anything.",
    "producers": "Show where runs come from: wakeups, messages, the poll.",
    "metrics": "Show what was counted since each dispatcher began.",
    "main": "Show who each dispatcher is, and when each of its loops last did its work.",
    "chunks": "Show messages that are half-sent.",
    "pause": "Have dispatchers claim no more runs; what they have goes on.",
    "resume": "Have dispatchers claim again.",
    "drain": "Have dispatchers end as at SIGTERM: claim nothing, wait for bodies, exit.",
    "shutdown": "Have dispatchers end at once: stop bodies, hand the runs back, exit.",
    "recycle": "Import the project afresh, and replace executors as they end what they have.",
}


class Command(BaseCommand):
    help = "Asks running dispatchers what they do, or tells them what to do."
    requires_system_checks = [checks.SETTINGS_TAG]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        streams.hold_standard_streams()
        super().__init__(*args, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        commands = parser.add_subparsers(dest="control", metavar="command", required=True)

        def add(name: str, text: str) -> argparse.ArgumentParser:
            one = commands.add_parser(name, help=text, description=text)
            _add_common(one)
            return one

        database_commands.add_to(lambda name, text: commands.add_parser(name, help=text, description=text))
        for name, text in PLAIN.items():
            add(name, text)
        roll = add("alive", "Call the roll: every dispatcher replies, and says if one of its parts is late.")
        roll.add_argument(
            "--metrics-port",
            type=int,
            metavar="PORT",
            help="With --node: ask here first, where it serves health on this host. Default: METRICS_PORT.",
        )
        running = add("running", "Show the runs that dispatchers have.")
        cancel = add("cancel", "Cancel runs, those that wait and those that run.")
        for one in (running, cancel):
            one.add_argument("--run", type=int, metavar="ID", help="The run with this id.")
            one.add_argument("--uuid", type=_given, help="The run that came by the message with this uuid.")
            one.add_argument("--task", type=_given, help="Runs of the task with this path.")
            one.add_argument("--queue", type=_given, help="Runs of this queue.")
        tasks = add("aio-tasks", "Show where the dispatcher's own asyncio tasks wait.")
        tasks.add_argument("--limit", type=int, default=6, help="The innermost frames of each. Default: 6.")
        stacks = add("stacks", "Show where the body of a run is.")
        stacks.add_argument("--run", type=int, metavar="ID", required=True, help="The run with this id.")
        level = add("set-log-level", "Set the level of the dispatchers' own loggers.")
        level.add_argument("level", choices=["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"])
        scale = add("scale", "Have so many executors for synchronous tasks.")
        scale.add_argument("--processes", type=int, required=True, metavar="N")
        _add_run(add("run", "Enqueue a run of a task, through a dispatcher."))

    def handle(self, *, control: str, **options: Any) -> None:
        if control in database_commands.COMMANDS:
            self.stdout.write(database_commands.COMMANDS[control](options))
            return
        command = control.replace("-", "_")
        replies = self._ask(command, _data(command, options), options)
        self._show(options, replies)
        self._judge(replies, options)
        if command == "stacks" and not any(set(answer) - {"node_id", "lease_id"} for answer in replies):
            raise CommandError(f"No dispatcher has run {options['run']}.")
        if command == "run" and options["wait"]:
            self._wait(replies, options["wait"])

    def _ask(self, command: str, data: dict[str, Any], options: dict[str, Any]) -> Replies:
        deadline = time.monotonic() + options["timeout"]
        why_not_here = ""
        if command == "alive" and options["node"] and options["expected_replies"] is None:
            answer, why_not_here = _ask_here(options)
            if answer is not None:
                return Replies(1, [answer])
        try:
            return ask(
                command,
                data,
                node=options["node"],
                timeout=deadline - time.monotonic(),
                expected_replies=options["expected_replies"],
            )
        except ControlError as error:
            raise CommandError(f"{error} {why_not_here}".strip()) from None

    def _show(self, options: dict[str, Any], replies: Replies) -> None:
        answers = sorted(replies, key=lambda answer: str(answer.get("node_id")))
        show = {"json": output.as_json, "yaml": output.as_yaml}.get(options["form"] or "", output.as_table)
        if answers or options["form"]:
            self.stdout.write(show(answers))

    def _judge(self, replies: Replies, options: dict[str, Any]) -> None:
        """Fail if anybody is missing, refuses, or is not well."""
        wrong = []
        if replies.missing:
            wrong.append(f"No reply from {', '.join(map(str, replies.missing))}.")
        if not replies.is_complete:
            wrong.append(f"{len(replies)} of {replies.expected} replies came within {options['timeout']:g} s.")
        if not replies.expected:
            whom = f"No dispatcher named {options['node']!r}" if options["node"] else "No dispatcher"
            wrong.append(f"{whom} has a live lease.")
        for answer in replies:
            if "error" in answer:
                wrong.append(f"{answer.get('node_id')}: {answer['error']}")
            elif answer.get("is_healthy") is False:
                wrong.append(f"{answer.get('node_id')} is not well; late: {', '.join(answer['late'])}.")
        if wrong:
            raise CommandError(" ".join(wrong))

    def _wait(self, replies: Replies, seconds: float) -> None:
        """Wait until the run has ended, and show what it came to; its exit code is 0 if it was SUCCESSFUL."""
        from ...models import Run

        run_id = next((answer["run_id"] for answer in replies if "run_id" in answer), None)
        if run_id is None:
            return
        runs = Run.objects.using(conf.current().database)
        deadline = time.monotonic() + seconds
        while (run := runs.filter(id=run_id).first()) is not None and not run.is_final:
            if time.monotonic() > deadline:
                raise CommandError(f"Run {run_id} is still {run.status} after {seconds:g} s.")
            time.sleep(LOOK_SECONDS)
        if run is None:
            raise CommandError(f"Run {run_id} is gone.")
        self.stdout.write(json.dumps({"run": run.id, "status": run.status, "result": run.result}, ensure_ascii=False))
        if code := ENDS[run.status]:
            message = run.errors[-1].get("message", "") if run.errors else ""
            self.stderr.write(f"Run {run.id} is {run.status}: {message}")
            sys.exit(code)


def _ask_here(options: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Ask a dispatcher for its health without the database, if it serves it on this host; else say why not."""
    settings = conf.current()
    host, port = settings.metrics_host, options["metrics_port"] or settings.metrics_port
    if not port:
        return None, ""
    try:
        return alive.ask_health(host, port, options["timeout"] * SHARE_HERE, node=options["node"]), ""
    except (OSError, ValueError) as error:
        return None, f"Nor is there an answer from port {port} of {host}: {error}."


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", help="Ask only the dispatchers of this name.")
    parser.add_argument(
        "--timeout",
        type=float,
        default=TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="Wait so long for replies. Default: 5.",
    )
    parser.add_argument(
        "--expected-replies", type=int, metavar="N", help="Wait for N replies. Default: one for each live lease."
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_const", const="json", dest="form", help="Show JSON.")
    form.add_argument("--yaml", action="store_const", const="yaml", dest="form", help="Show YAML.")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", help="The path of the task.")
    parser.add_argument("--args", type=_json, default=[], dest="task_args", metavar="JSON", help="A JSON array.")
    parser.add_argument("--kwargs", type=_json, default={}, dest="task_kwargs", metavar="JSON", help="A JSON object.")
    parser.add_argument("--queue", help="The queue. Default: the task's own.")
    parser.add_argument("--delay", type=float, metavar="SECONDS", help="Start it so much later.")
    parser.add_argument(
        "--wait",
        type=float,
        nargs="?",
        const=3600.0,
        metavar="SECONDS",
        help="Wait until it has ended, an hour at most or so long, and show its result.",
    )


def _given(text: str) -> str:
    if not text:  # on the wire it would be no filter, and mean more runs than an empty variable of a script does
        raise argparse.ArgumentTypeError("it must not be empty")
    return text


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"it is no JSON: {error}") from None


def _data(command: str, options: dict[str, Any]) -> dict[str, Any]:
    """The data of a command: what was given of its own options."""
    names = {
        "running": ("run", "uuid", "task", "queue"),
        "cancel": ("run", "uuid", "task", "queue"),
        "aio_tasks": ("limit",),
        "stacks": ("run",),
        "set_log_level": ("level",),
        "scale": ("processes",),
        "run": ("task", "task_args", "task_kwargs", "queue", "delay"),
    }.get(command, ())
    data = {name.removeprefix("task_"): options[name] for name in names if options[name] is not None}
    return data | {"uuid": str(uuid4())} if command == "run" else data
