"""The commands of dispatcherctl that ask the database alone: they work when no dispatcher lives."""

import argparse
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import CommandError

from .. import steering
from ..exceptions import InvalidOption
from ..explain import explain as explain_run
from ..models import Run

AddCommand = Callable[[str, str], argparse.ArgumentParser]


def add_to(add: AddCommand) -> None:
    """Add the commands and their options."""
    pausing = add("pause-queue", "Have nothing claimed from a queue, by any dispatcher; what runs goes on.")
    pausing.add_argument("queue", help="The name of the queue.")
    pausing.add_argument("--reason", default="", help="Why; shown to whoever asks.")
    end = pausing.add_mutually_exclusive_group()
    end.add_argument("--until", type=_moment, metavar="TIME", help="Resume by itself then: 2026-01-31T18:00.")
    end.add_argument("--for", type=_span, metavar="SECONDS", dest="until", help="Resume by itself after so long.")
    pausing.add_argument("--by", default="", help="Who; shown to whoever asks.")
    resuming = add("resume-queue", "Have a queue claimed from again.")
    resuming.add_argument("queue", help="The name of the queue.")
    explaining = add("explain", "Say why a run is not running, or what it does.")
    explaining.add_argument("run", type=int, help="The id of the run.")
    explaining.add_argument("--json", action="store_true", help="Show JSON.")


def pause_queue(options: dict[str, Any]) -> str:
    """Pause; return what to say."""
    queue, until = options["queue"], options["until"]
    _refusing(steering.pause_queue, queue, reason=options["reason"], until=until, by=options["by"])
    end = "it is resumed" if until is None else f"{until} from now" if isinstance(until, timedelta) else f"{until}"
    return f"Queue {queue!r} is paused until {end}."


def resume_queue(options: dict[str, Any]) -> str:
    """Resume; return what to say."""
    queue = options["queue"]
    was_paused = _refusing(steering.resume_queue, queue)
    return f"Queue {queue!r} is resumed." if was_paused else f"Queue {queue!r} was not paused."


def explain(options: dict[str, Any]) -> str:
    """Return why the run is not running, as sentences or JSON."""
    try:
        explanation = explain_run(options["run"])
    except Run.DoesNotExist:
        raise CommandError(f"Run {options['run']} does not exist: it was never enqueued, or is pruned.") from None
    if options["json"]:
        return json.dumps(explanation.as_document(), indent=2, ensure_ascii=False)
    return f"Run {explanation.run_id} ({explanation.task}) is {explanation.status}.\n{explanation}"


COMMANDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "pause-queue": pause_queue,
    "resume-queue": resume_queue,
    "explain": explain,
}


def _refusing(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return call(*args, **kwargs)
    except InvalidOption as error:
        raise CommandError(str(error)) from None


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a time looks like 2026-01-31T18:00+01:00, not {text!r}") from None


def _span(text: str) -> timedelta:
    try:
        return timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"it must be a number of seconds, not {text!r}") from None
