"""What probes and service managers are told of a dispatcher."""

import asyncio
import io
import json
import os
import re
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError

from django_dispatch import alive
from django_dispatch.conf import DispatchSettings
from django_dispatch.control import ask
from django_dispatch.dispatcher.health import Health
from django_dispatch.dispatcher.service_manager import ServiceManager
from django_dispatch.dispatcher.stats import Stats
from django_dispatch.dispatcher.trouble import LATELY_SECONDS, Trouble
from django_dispatch.executors.fence import Board
from django_dispatch.models import Lease
from tests.kit import tasks
from tests.kit.dispatchers import BASE_DIR
from tests.kit.fixtures import Kit
from tests.kit.http import free_port, get
from tests.kit.relay import Relay
from tests.kit.runs import wait_until_final
from tests.kit.waiting import wait_for

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Inbox:
    """The service manager's end of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._socket.bind(address)
        self._socket.setblocking(False)
        self._all: list[str] = []

    @property
    def all(self) -> list[str]:
        """All messages so far."""
        while True:
            try:
                self._all += self._socket.recv(65536).decode().split("\n")
            except BlockingIOError:
                return list(self._all)

    def wait_for(self, message: str, times: int = 1) -> None:
        wait_for(lambda: self.all.count(message) >= times, 30, what=lambda: f"{times} times {message} among {self.all}")

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    inbox = Inbox(str(tmp_path / "notify"))
    yield inbox
    inbox.close()


# what counts as what


class Parts:
    """A dispatcher's parts as Health looks at them, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("time.time", lambda: self.now)
        self.stats = Stats()
        self.trouble = Trouble(clock=lambda: self.now)
        self.board = Board.create(slots=1)
        self.pool = SimpleNamespace(executors={}, wanted=lambda kind: 0, flights=list)
        self.settings = SimpleNamespace(node="web1")
        self.state = "active"
        for name in ("claims", "poll"):
            self.stats.expect(name, 1.0)
        self.health = Health(self)  # type: ignore[arg-type]

    def pass_seconds(self, seconds: float, *working: str) -> None:
        self.now += seconds
        for name in working:
            self.stats.succeed(name)


def in_a_loop(test: Any) -> None:
    async def run() -> None:
        test()

    asyncio.run(run())


def test_a_loop_that_stands_still_is_failing_and_one_that_works_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def test() -> None:
        parts = Parts(monkeypatch)
        parts.pass_seconds(14, "poll")
        assert parts.health.failing() == {}
        parts.pass_seconds(3, "poll")
        assert parts.health.failing() == {"claims": "has not done its work for 17 s"}
        assert parts.health.unready() == ["the claims loop has not done its work for 17 s"]
        parts.pass_seconds(3, "poll", "claims")
        assert (parts.health.failing(), parts.health.unready()) == ({}, [])

    in_a_loop(test)


def test_the_database_excuses_those_whom_it_fails_and_for_a_while_those_who_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def test() -> None:
        parts = Parts(monkeypatch)
        parts.pass_seconds(20)
        assert set(parts.health.failing()) == {"claims", "poll"}
        parts.trouble.failed("poll", OperationalError("gone"))
        assert parts.health.failing() == {}, "claims may have to wait for the poll's call"
        for _ in range(4):
            parts.pass_seconds(LATELY_SECONDS / 3)
            parts.trouble.failed("poll", OperationalError("gone"))
        assert set(parts.health.failing()) == {"claims"}, "it had its turn by now, and stands still for another reason"
        parts.pass_seconds(LATELY_SECONDS + 1)
        assert set(parts.health.failing()) == {"claims", "poll"}, "the database has failed nobody lately"

    in_a_loop(test)


@pytest.mark.parametrize(
    ("state", "reason"), [("paused", "it is paused"), ("draining", "it is draining"), ("grounded", "it has no lease")]
)
def test_who_takes_up_no_runs_is_not_ready_but_healthy(
    state: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def test() -> None:
        parts = Parts(monkeypatch)
        parts.state = state
        assert (parts.health.unready(), parts.health.failing()) == ([reason], {})

    in_a_loop(test)


def test_only_kinds_that_are_wanted_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    def test() -> None:
        parts = Parts(monkeypatch)
        parts.pool.wanted = lambda kind: 2 if kind == "sync" else 0
        assert parts.health.unready() == ["no sync executor is ready"]
        parts.pool.executors = {1: SimpleNamespace(kind="sync", is_ready=True, is_doomed=False)}
        assert parts.health.unready() == []
        parts.board.lower_fence()
        assert parts.health.unready() == ["its lease was not renewed in time"]

    in_a_loop(test)


# the service manager


class Reports:
    """Stands for a Health: what it is to say."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.loops: dict[str, str] = {}

    def failing(self) -> dict[str, str]:
        return self.loops

    def unready(self) -> list[str]:
        return self.reasons

    def status(self) -> str:
        return "active"


def beats(reports: Reports, *moments: float) -> None:
    """Make one beat of a service manager's loop at each moment."""
    manager = ServiceManager(reports)  # type: ignore[arg-type]
    for moment in moments:
        manager._beat(moment)


def test_the_watchdog_is_told_at_half_of_its_time_and_not_by_who_cannot_do_its_job(
    inbox: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "20000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    reports = Reports()
    manager = ServiceManager(reports)  # type: ignore[arg-type]
    assert not set(VARIABLES) & set(os.environ), "nobody else is to speak for us"
    told_at = []
    for moment in range(100, 150):
        reports.loops = {"claims": "stands still"} if moment >= 130 else {}
        before = inbox.all.count("WATCHDOG=1")
        manager._beat(moment)
        told_at += [moment] * (inbox.all.count("WATCHDOG=1") - before)
    assert told_at == [100, 109, 118, 127]


@pytest.mark.parametrize("pid", ["1", str(os.getpid() + 1)], ids=["of init", "of another"])
def test_a_watchdog_of_another_process_is_not_ours(
    pid: str, inbox: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "20000000")
    monkeypatch.setenv("WATCHDOG_PID", pid)
    beats(Reports(), 100.0)
    assert inbox.all == ["READY=1", "STATUS=active"]


def test_an_abstract_socket_is_spoken_to(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"django-dispatch-test-{os.getpid()}"
    inbox = Inbox(f"\0{name}")
    monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
    beats(Reports(), 100.0)
    assert inbox.all == ["READY=1", "STATUS=active"]
    inbox.close()


def test_a_start_that_waits_is_given_more_time_and_one_that_hangs_is_not(
    inbox: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    reports = Reports()
    reports.reasons = ["it has no lease"]
    beats(reports, 100.0)
    assert inbox.all == ["EXTEND_TIMEOUT_USEC=30000000", "STATUS=active"]
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    reports.loops = {"claims": "stands still"}
    beats(reports, 100.0)
    assert inbox.all[2:] == ["STATUS=active"]


@pytest.mark.parametrize("address", ["vsock:2:1234", "/nowhere/at/all", ""])
def test_a_service_manager_that_is_not_there_does_no_harm(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    beats(Reports(), 100.0, 101.0)


# a real dispatcher


def test_from_its_start_to_its_end(kit: Kit, inbox: Inbox, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "sabotage").write_text("zygote wait")
    env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "2000000"}
    a = kit.dispatchers("a", is_awaited=False, metrics_port=port, lease_ttl=15, env=env)
    wait_for(lambda: get(port, "/readyz").status == 503 and a.lease_id, 30, what="an answer, and a lease")
    assert get(port, "/readyz").document == {
        "is_ready": False,
        "node": "a",
        "state": "active",
        "reasons": ["no sync executor is ready"],
    }
    assert get(port, "/healthz").status == 200
    inbox.wait_for("EXTEND_TIMEOUT_USEC=30000000")
    assert "READY=1" not in inbox.all
    (tmp_path / "sabotage").unlink()
    inbox.wait_for("READY=1")
    assert (Lease.objects.count(), len(a.executor_pids)) == (1, 1)
    assert get(port, "/readyz").status == 200

    run = tasks.gated.delay("busy")
    kit.gate.wait_until_reached("busy")
    wait_for(lambda: any(re.match("STATUS=active, 1 running", message) for message in inbox.all), what="the status")
    assert (get(port, "/healthz").status, get(port, "/readyz").status) == (200, 200), "busy is neither"
    for process in a.processes():
        if process.pid != a.pid:
            assert not set(VARIABLES) & set(process.environ())
    inbox.wait_for("WATCHDOG=1", times=3)

    ask("pause", timeout=20)
    assert get(port, "/readyz").document["reasons"] == ["it is paused"]
    ask("resume", timeout=20)
    assert get(port, "/readyz").status == 200

    a.terminate()
    inbox.wait_for("STOPPING=1")
    assert get(port, "/readyz").document["reasons"] == ["it is draining"]
    assert get(port, "/healthz").status == 200
    kit.gate.open("busy")
    wait_until_final(run)
    assert a.exit_code() == 0
    assert (get(port, "/healthz").status, inbox.all.count("READY=1"), inbox.all.count("STOPPING=1")) == (0, 1, 1)


def test_what_a_body_starts_cannot_speak_for_the_dispatcher(kit: Kit, inbox: Inbox, tmp_path: Path) -> None:
    a = kit.dispatchers("a", env={"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "60000000"})
    run = tasks.leave_programs.delay("gate")
    kit.gate.wait_until_reached("gate")
    family = [process for process in a.processes() if process.pid != a.pid]
    assert len(family) > 3, "zygote, executor, and the programs"
    for process in family:
        assert not set(VARIABLES) & set(process.environ())
    kit.gate.open("gate")
    wait_until_final(run)


@pytest.mark.slow
def test_only_a_loop_that_cannot_do_its_job_is_a_failure(kit: Kit, relay: Relay, tmp_path: Path) -> None:
    """One dispatcher's database says nothing at all; another one's claims loop stands still, with a good database."""
    away, broken = free_port(), free_port()
    a = kit.dispatchers("a", database_url=relay.url, metrics_port=away, lease_ttl=15)
    wait_for(lambda: get(away, "/readyz").status == 200, what="ready")
    relay.swallow()
    a.wait_for_log("Trouble with the database", 30)
    (tmp_path / "sabotage").write_text("dispatcher hang_claims")
    kit.dispatchers("b", is_awaited=False, metrics_port=broken, lease_ttl=15)
    wait_for(lambda: get(broken, "/healthz").status == 200, 30, what="as yet healthy")
    answers = []

    def b_is_unhealthy() -> bool:
        answers.append(get(away, "/healthz"))
        return get(broken, "/healthz").status == 503

    wait_for(b_is_unhealthy, 60, what="the claims loop missed")
    assert list(get(broken, "/healthz").document["failing"]) == ["claims"]
    assert {answer.status for answer in answers} == {200}, "no restart would bring the database back"
    assert min(answer.seconds for answer in answers) < 0.2
    assert get(away, "/readyz").document["reasons"][0] in ("it has no lease", "its lease was not renewed in time")
    relay.cut()
    relay.forward()
    wait_for(lambda: get(away, "/readyz").status == 200, 60, what="ready again")


def test_a_loop_that_does_not_turn_answers_nothing(kit: Kit) -> None:
    port = free_port()
    a = kit.dispatchers("a", metrics_port=port, lease_ttl=15)
    probe = [sys.executable, "-m", "django_dispatch.alive", f"--port={port}", "--timeout=0.5"]
    assert subprocess.run(probe, cwd=BASE_DIR, check=False).returncode == 0
    kit.freeze(a.pid)
    assert subprocess.run(probe, cwd=BASE_DIR, check=False).returncode == 1
    kit.freeze.thaw_all()


def test_the_program_for_probes_says_yes_or_no_quickly(kit: Kit) -> None:
    port = free_port()
    kit.dispatchers("a", metrics_port=port, lease_ttl=15)

    def probe(*options: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "django_dispatch.alive", *options]
        done = subprocess.run(command, cwd=BASE_DIR, check=False, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code, text = probe(f"--port={port}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (code, '"is_healthy": true' in text) == (0, True)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.2, "of a processor, however busy"
    wait_for(lambda: probe(f"--port={port}", "--ready")[0] == 0, what="ready")
    ask("pause", timeout=20)
    code, text = probe(f"--port={port}", "--ready")
    assert (code, "it is paused" in text) == (1, True)
    assert probe(f"--port={port}", "--node=a")[0] == 0
    code, text = probe(f"--port={port}", "--node=b")
    assert (code, text) == (1, f"No answer from port {port} of 127.0.0.1: it is not 'b' but 'a'.\n")
    code, text = probe(f"--port={free_port()}")
    assert (code, text.startswith("No answer from port")) == (1, True)


class Untouched:
    """Stands for a database that accepts connections and says nothing; ``was_touched`` says whether one came."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.url = f"postgres://nobody@127.0.0.1:{self._socket.getsockname()[1]}/none"

    def was_touched(self) -> bool:
        try:
            self._socket.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def untouched() -> Iterator[Untouched]:
    untouched = Untouched()
    yield untouched
    untouched.close()


def alive_of(node: str, port: int, url: str, *options: str) -> tuple[int, str]:
    """``dispatcherctl alive`` as a program, with this database: exit code and output."""
    command = [sys.executable, "manage.py", "dispatcherctl", "alive", f"--node={node}", f"--metrics-port={port}"]
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": url}
    done = subprocess.run([*command, *options], cwd=BASE_DIR, env=env, check=False, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_a_dispatcher_on_this_host_is_asked_for_without_the_database(
    kit: Kit, untouched: Untouched, database_url: str
) -> None:
    port = free_port()
    a = kit.dispatchers("a", metrics_port=port, lease_ttl=30)
    code, text = alive_of("a", port, untouched.url, "--json")
    assert (code, json.loads(text)) == (0, [{"is_healthy": True, "late": [], "node_id": "a"}])
    assert not untouched.was_touched()
    # Others are asked over the database, so there must be one; and so is who does not answer here.
    code, text = alive_of("b", port, untouched.url, "--timeout=1")
    assert (code, "could not be sent" in text, "it is not 'b' but 'a'" in text) == (1, True, True)
    assert untouched.was_touched()
    assert alive_of("a", free_port(), database_url, "--timeout=20")[0] == 0
    kit.freeze(a.pid)
    code, text = alive_of("a", port, database_url, "--timeout=1")
    assert (code, f"No reply from a (pid {a.pid} " in text) == (1, True)
    code, text = alive_of("a", port, untouched.url, "--timeout=1")
    assert (code, f"Nor is there an answer from port {port} of 127.0.0.1: timed out." in text) == (1, True)
    kit.freeze.thaw_all()


@contextmanager
def one_answer(status: int, body: str) -> Iterator[int]:
    """Answer one request; gives the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(f"HTTP/1.1 {status} Whatever\r\n\r\n{body}".encode())

        thread = threading.Thread(target=answer)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


@pytest.mark.parametrize("body", ["", "[]", "{", '{"node": 5}', '{"is_healthy": true}'])
def test_an_answer_that_names_no_dispatcher_is_none(body: str) -> None:
    with one_answer(200, body) as port, pytest.raises(ValueError, match="it is not 'a'"):
        alive.ask_health("127.0.0.1", port, 20.0, node="a")


def test_a_dispatcher_that_is_not_well_is_named_with_what_is_late() -> None:
    document = {"is_healthy": False, "node": "a", "state": "active", "failing": {"claims": "has not done its work"}}
    with (
        one_answer(503, json.dumps(document)) as port,
        pytest.raises(CommandError, match=r"^a is not well; late: claims\.$"),
    ):
        call_command("dispatcherctl", "alive", node="a", metrics_port=port, stdout=io.StringIO(), skip_checks=True)


def test_the_program_for_probes_imports_no_django_and_knows_the_default_port() -> None:
    code = "import sys, django_dispatch.alive; print(*[name for name in sys.modules if name.startswith('django.')])"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=BASE_DIR, text=True).strip() == ""
    settings = DispatchSettings()
    assert (settings.metrics_host, settings.metrics_port) == (alive.DEFAULT_HOST, alive.DEFAULT_PORT)


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_probe_answers_before_django_is_imported_and_as_its_command_does(
    form: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.dumps({"is_healthy": True, "node": "a", "state": "active", "failing": {}})
    code = (
        "import sys; from django_dispatch.alive import answer_early\n"
        "try: answer_early(sys.argv[1:])\n"
        "finally: assert not [name for name in sys.modules if name.startswith('django.')]"
    )
    words = ["dispatcherctl", "alive", "--node=a", *form]
    with one_answer(200, document) as port:
        command = [sys.executable, "-c", code, *words, f"--metrics-port={port}"]
        early = subprocess.check_output(command, cwd=BASE_DIR, text=True)
    with one_answer(200, document) as port:
        call_command(*words, f"--metrics-port={port}", skip_checks=True)
    assert capsys.readouterr().out == early


@pytest.mark.parametrize(
    ("words", "document"),
    [
        ("dispatcherctl alive", {"is_healthy": True, "node": "a"}),
        ("dispatcherctl alive --node=a --yaml", {"is_healthy": True, "node": "a"}),
        ("dispatcherctl status --node=a", {"is_healthy": True, "node": "a"}),
        ("dispatcherctl alive --node=a", {"is_healthy": False, "node": "a"}),
        ("dispatcherctl alive --node=a --metrics-port=x", {"is_healthy": True, "node": "a"}),
        ("migrate", {"is_healthy": True, "node": "a"}),
        ("", {"is_healthy": True, "node": "a"}),
    ],
)
def test_what_is_not_a_yes_is_left_to_the_command(
    words: str, document: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    status = 200 if document["is_healthy"] else 503
    monkeypatch.setattr(alive, "ask", lambda *_, **__: (status, json.dumps(document)))
    alive.answer_early(words.split())
