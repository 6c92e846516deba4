"""The documentation names what there is: nothing is missing, nothing is made up, no link leads nowhere."""

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from django.core.management import load_command_class
from django.core.management.base import BaseCommand

from django_dispatch import __all__ as public_names
from django_dispatch import checks, documents
from django_dispatch.conf import DispatchSettings
from django_dispatch.control import wire
from django_dispatch.dispatcher import submissions
from django_dispatch.dispatcher.commands import COMMANDS
from django_dispatch.enqueue import EnqueueOptions
from django_dispatch.management import database_commands
from django_dispatch.models import CatchUp, Status
from django_dispatch.schedules import Cron, Timing

BASE_DIR = Path(__file__).resolve().parent.parent
DOCS = BASE_DIR / "docs"
PAGES = [BASE_DIR / "README.md", BASE_DIR / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def read(name: str) -> str:
    return (DOCS / name).read_text()


def rows(text: str) -> set[str]:
    """The code words that stand first in a row of a table."""
    return set(re.findall(r"^\| `([^`]+)`", text, re.MULTILINE))


def first_cells(text: str) -> Iterator[str]:
    """Every code word in the first cell of a row."""
    for cell in re.findall(r"^\| (`[^|]*)\|", text, re.MULTILINE):
        yield from re.findall(r"`([^`]+)`", cell)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, made as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_settings_page_names_every_key_and_no_other() -> None:
    keys = {field.name.removesuffix("_seconds").upper() for field in fields(DispatchSettings)}
    assert rows(read("settings.md").split("## Checks")[0]) == keys


def test_settings_page_names_every_check_and_no_other() -> None:
    ids = set(re.findall(r"django_dispatch\.[EIW]\d{3}", Path(checks.__file__).read_text()))
    assert rows(read("settings.md").split("## Checks")[1]) == ids


def test_rundispatcher_page_names_every_option_and_no_other() -> None:
    command = load_command_class("django_dispatch", "rundispatcher")
    of_django = BaseCommand().create_parser("manage.py", "any")
    inherited = {option for action in of_django._actions for option in action.option_strings}
    parser = command.create_parser("manage.py", "rundispatcher")
    options = {option for action in parser._actions for option in action.option_strings} - inherited
    section = read("rundispatcher.md").split("## Options")[1].split("## Output")[0]
    assert {word.split(" ")[0] for word in first_cells(section)} == options


def test_control_page_names_every_command_and_common_option_and_no_other() -> None:
    command = load_command_class("django_dispatch", "dispatcherctl")
    (commands,) = command.create_parser("manage.py", "dispatcherctl")._subparsers._group_actions
    page = read("control.md")
    section = page.split("## Commands")[1].split("| option |")[0]
    assert rows(section) == set(commands.choices)
    asked = set(commands.choices) - set(database_commands.COMMANDS)
    assert {name.replace("-", "_") for name in asked} == set(COMMANDS)
    options = {option for action in commands.choices["main"]._actions for option in action.option_strings}
    listed = page.split("| option |")[1].split("The exit code")[0]
    assert {word.split(" ")[0] for word in first_cells(listed)} == options - {"-h", "--help"}


def test_control_page_says_how_much_may_be_half_sent_and_how_many_wait() -> None:
    page = read("control.md")
    assert f"at most {wire.LARGEST_PENDING >> 20} MB" in page
    assert f"{submissions.MOST_WAITING:,} messages wait" in page
    assert wire.EXPIRY_SECONDS == 60
    assert "after a\n  minute" in page


def test_logging_page_names_every_logger_and_no_other() -> None:
    sources = "".join(path.read_text() for path in (BASE_DIR / "django_dispatch").rglob("*.py"))
    table = read("logging.md").split("| logger |")[1].split("\n\n")[0]
    named = re.findall(r"`(?:django_dispatch)?\.(\w+)`", table)
    assert sorted(named) == sorted(set(re.findall(r'getLogger\("django_dispatch\.(\w+)"\)', sources)))


def test_statuses_page_names_every_status_and_kind_of_error_and_no_other() -> None:
    page = read("statuses.md")
    assert rows(page.split("## What an ending does")[0]) == set(Status.values)
    said = re.search(r"``kind`` is one of ([^.]+)\.", documents.error_document.__doc__ or "")
    assert said
    assert rows(page.split("| kind | what happened |")[1]) == set(re.findall(r"\w+", said[1])) - {"and"}


def test_tasks_page_names_every_public_name_and_enqueue_option() -> None:
    page = read("tasks.md") + read("logging.md")
    missing = {name for name in {*public_names, *EnqueueOptions.__annotations__} if not re.search(rf"\b{name}\b", page)}
    assert missing <= {"DispatchError", "Task", "UnknownTask"}, missing


def test_schedules_page_names_every_option_and_policy_and_no_other() -> None:
    page = read("schedules.md")
    options = {field.name for timing in (Cron, Timing) for field in fields(timing)} - {"expression"}
    assert set(first_cells(page.split("| option |")[1].split("What makes no sense")[0])) == options
    policies = {word.strip('"') for word in first_cells(page.split("| `catch_up` | after")[1].split("With `")[0])}
    assert policies == set(CatchUp.values)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.is_file(), target
        assert not anchor or anchor in anchors(file), target


def test_every_page_is_in_the_index() -> None:
    linked = {target.partition("#")[0] for target in LINK.findall(read("index.md"))}
    assert {page.name for page in DOCS.glob("*.md")} - {"index.md"} <= linked


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_compile(page: Path) -> None:
    for language, code in FENCE.findall(page.read_text()):
        if language == "python":
            compile(code, f"{page.name}: {code[:40]!r}", "exec")


def test_every_fault_names_tests_that_exist() -> None:
    for line in re.findall(r"^\| (?!what |\W+$).*", read("what-happens-when.md"), re.MULTILINE):
        names = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", line)
        assert names, line
        for path, name in names:
            assert f"def {name}(" in (BASE_DIR / path).read_text(), f"{path}::{name}"


def test_no_picture_is_large() -> None:
    assert all(picture.stat().st_size < 150_000 for picture in (DOCS / "images").iterdir())
