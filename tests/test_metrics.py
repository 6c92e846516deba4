"""The figures of a dispatcher, as a scraper sees them: true, whole, and never falling."""

import json
import re
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from django.db.models import Sum
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from pytest_django.plugin import DjangoDbBlocker

from django_dispatch import control, steering
from django_dispatch.dispatcher.stats import Stats
from django_dispatch.metrics.families import MOST_QUEUES, OTHER, Histogram, Names
from django_dispatch.models import Lease, Run
from django_dispatch.store.values import ClaimedRun
from tests.kit import tasks
from tests.kit.dispatchers import Dispatcher
from tests.kit.fixtures import Kit, open_kit
from tests.kit.runs import wait_until_final
from tests.kit.scrape import Scrape, free_port, get, scrape
from tests.kit.waiting import wait_for

BASE_DIR = Path(__file__).resolve().parent.parent
DASHBOARD = BASE_DIR / "docs" / "grafana" / "django-dispatch.json"
FINAL = ("SUCCESSFUL", "FAILED", "CANCELLED")


class Worker:
    """A dispatcher that has done all kinds of work."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.port = free_port()
        self.dispatcher: Dispatcher = kit.dispatchers(
            "m", processes=8, async_concurrency=4, metrics_port=self.port, is_awaited=False
        )
        self.dispatcher.wait_until_ready(8)

    def scrape(self) -> Scrape:
        return scrape(self.port)


@pytest.fixture(scope="module")
def worker(
    tmp_path_factory: pytest.TempPathFactory, database_url: str, django_db_blocker: DjangoDbBlocker
) -> Iterator[Worker]:
    with open_kit(tmp_path_factory.mktemp("metrics"), database_url, django_db_blocker) as kit:
        yield Worker(kit)


@pytest.mark.slow
def test_a_thousand_runs_over_eight_executors_add_up(worker: Worker) -> None:
    kit = worker.kit
    runs = [
        *tasks.quick.delay_many([()] * 900),
        *tasks.note.delay_many([(number,) for number in range(60)]),
        *(tasks.anote.apply_async([number], queue="loop") for number in range(10)),
        *(tasks.misbehave.delay("no such", "kind") for _ in range(20)),
        *(tasks.kill_me.delay() for _ in range(4)),
        tasks.note.apply_async(["later"], countdown=0.5),
    ]
    stopped = tasks.gated.delay("stopped")
    killed = tasks.gated.delay("killed")
    kit.gate.wait_until_reached("stopped", "killed")
    steering.cancel(stopped)
    (pid,) = (row.pid for row in kit.ledger.rows() if row.run_id == killed.pk)
    psutil.Process(pid).kill()
    runs.append(stopped)
    wait_for(lambda: Run.objects.get(pk=killed.pk).attempt == 2, what="another attempt")
    kit.gate.open("killed")
    wait_until_final(*runs, killed, seconds=120)

    def has_settled() -> bool:
        found = worker.scrape()
        return found.value("django_dispatch_runs_held") == 0 and found.value("django_dispatch_slots", state="busy") == 0

    wait_for(has_settled, what="everything is written")
    found = worker.scrape()
    in_database = Counter(Run.objects.values_list("task", "queue", "status"))
    finished = found.by("django_dispatch_runs_finished_total", "task", "queue", "status")
    assert {key: number for key, number in finished.items() if key[2] in FINAL} == in_database
    totals = Run.objects.aggregate(attempts=Sum("attempt"), epochs=Sum("epoch"))
    assert sum(in_database.values()) == len(runs) + 1 > 990
    assert found.value("django_dispatch_runs_started_total") == totals["attempts"]
    assert found.value("django_dispatch_run_wait_seconds_count") == totals["attempts"]
    assert found.value("django_dispatch_run_body_seconds_count") == totals["attempts"]
    assert found.value("django_dispatch_runs_claimed_total") == totals["epochs"] == sum(finished.values())
    assert found.value("django_dispatch_claim_runs_sum") == totals["epochs"]
    deaths = 1 + Run.objects.filter(task=tasks.kill_me.path).aggregate(total=Sum("attempt"))["total"]
    assert found.value("django_dispatch_executors_exited_total", cause="itself") == deaths
    wait_for(lambda: len(worker.dispatcher.executor_pids) == 9, what="all executors are there again")
    found = worker.scrape()
    started = found.value("django_dispatch_executors_started_total")
    assert started - found.value("django_dispatch_executors_exited_total") == 9
    for name in ("claim_seconds_count", "wakeup_seconds_count", "lease_renewals_total", "leases_acquired_total"):
        assert found.value(f"django_dispatch_{name}") >= 1, name
    assert found.value("django_dispatch_wakeups_received_total", source="pg_notify", kind="ready") >= 1
    assert found.value("django_dispatch_loop_late") == 0
    loops = found.by("django_dispatch_loop_last_success_timestamp_seconds", "loop")
    assert {"claims", "lease", "reclaim", "promote", "prune", "poll", "listener"} <= {loop for (loop,) in loops}


@pytest.mark.slow
def test_the_figures_of_now_are_those_of_the_database_and_the_kernel(worker: Worker) -> None:
    kit = worker.kit
    waits = [tasks.gated.delay(f"held{number}") for number in range(3)]
    kit.gate.wait_until_reached(*(f"held{number}" for number in range(3)))
    control.ask("pause")
    waiting = [*tasks.note.delay_many([()] * 5), tasks.note.apply_async(queue="other queue")]
    (status,) = control.ask("status")
    wait_for(lambda: worker.scrape().value("django_dispatch_queue_ready_runs") == 6, 15, what="the backlog")
    found = worker.scrape()
    assert found.by("django_dispatch_queue_ready_runs", "queue") == {("default",): 5, ("other queue",): 1}
    assert 0 < found.value("django_dispatch_queue_oldest_seconds", queue="default") < 60
    assert found.value("django_dispatch_runs_held", state="running") == 3
    assert found.value("django_dispatch_slots", kind="sync", state="busy") == 3
    assert found.value("django_dispatch_slots", kind="sync", state="free") == 5
    assert found.value("django_dispatch_dispatcher_state", state="paused") == 1
    assert found.value("dispatcher_worker_count_total") == len(worker.dispatcher.executor_pids) == 9
    assert found.value("django_dispatch_listener_connected") == 1
    assert 0 < found.value("django_dispatch_lease_seconds_left") < 3
    assert status["main"]["pid"] == worker.dispatcher.pid
    assert {one["pid"] for one in status["workers"].values()} == set(worker.dispatcher.executor_pids)
    assert {one["run_id"] for one in status["running"].values()} == set(
        Run.objects.filter(status="RUNNING").values_list("pk", flat=True)
    )
    assert status["main"]["lease_id"] == str(Lease.objects.get().pk)
    for one in status["workers"].values():
        assert one["rss_kb"] == pytest.approx(psutil.Process(one["pid"]).memory_info().rss / 1024, rel=0.5)
    shown = {
        (one["task"], one["queue"], one["status"]): one["value"]
        for one in status["metrics"]["django_dispatch_runs_finished_total"]
    }
    assert shown == found.by("django_dispatch_runs_finished_total", "task", "queue", "status")
    control.ask("resume")
    for number in range(3):
        kit.gate.open(f"held{number}")
    wait_until_final(*waits, *waiting)


@pytest.mark.slow
def test_what_bodies_enqueue_is_counted_and_nothing_falls_when_executors_are_replaced(worker: Worker) -> None:
    before = worker.scrape()
    wait_until_final(tasks.enqueue_more.delay(3), tasks.aenqueue_more.delay(2))
    after = worker.scrape()
    assert worker.kit is not None
    name = "django_dispatch_runs_enqueued_total"
    assert after.value(name, task=tasks.quick.path) - before.value(name, task=tasks.quick.path) == 5
    old = set(worker.dispatcher.executor_pids)
    control.ask("recycle")
    wait_for(
        lambda: not old & set(worker.dispatcher.executor_pids) and len(worker.dispatcher.executor_pids) == 9,
        60,
        what="fresh executors",
    )
    wait_until_final(*tasks.quick.delay_many([()] * 20))
    wait_for(lambda: worker.scrape().value("django_dispatch_runs_held") == 0)
    fresh = worker.scrape()
    counters = [key for key in after.values if re.search("_(total|count|sum|bucket)$", key[0])]
    assert len(counters) > 100
    fallen = {key for key in counters if fresh.values.get(key, -1) < after.values[key] and "worker_count" not in key[0]}
    assert fallen == set()
    assert fresh.value("django_dispatch_executors_exited_total", cause="let go") >= 8


def test_both_formats_and_the_types_that_dispatcherd_has(worker: Worker) -> None:
    status, content_type, text = get(worker.port)
    assert (status, content_type.split(";")[0]) == (200, "text/plain")
    assert all(family.documentation for family in text_string_to_metric_families(text))
    status, content_type, text = get(worker.port, accept="application/openmetrics-text; version=1.0.0")
    assert (status, content_type.split(";")[0]) == (200, "application/openmetrics-text")
    kinds = {family.name: family.type for family in parse_openmetrics(text)}
    for name in ("dispatcher_messages_received", "dispatcher_control_messages_count", "dispatcher_worker_count"):
        assert kinds[name] == "counter"


def test_dashboard_and_docs_name_what_there_is(worker: Worker) -> None:
    wait_until_final(tasks.quick.delay(), tasks.enqueue_more.delay(2))
    found = worker.scrape()
    dashboard = json.dumps(json.loads(DASHBOARD.read_text()))
    named = set(re.findall(r"\b(?:django_dispatch|dispatcher)_[a-z_]+", dashboard))
    assert len(named) > 20
    # What has not happened yet has no sample: only a family.
    families = {family.name for family in found.families}
    known = found.names | families | {f"{name}_total" for name in families}
    known |= {f"{name}_bucket" for name in families} | {"django_dispatch_leases"}
    assert named <= known
    docs = (BASE_DIR / "docs" / "metrics.md").read_text()
    for name, kind in found.kinds.items():
        full = f"{name}_total" if kind == "counter" else name
        assert f"`{full}`" in docs, full
    of_docs = set(re.findall(r"^\| `([a-z_]+)`", docs, re.MULTILINE))
    assert of_docs <= known


def test_garbage_and_slow_clients_cost_nothing(worker: Worker) -> None:
    pids = worker.dispatcher.executor_pids
    silent = [socket.create_connection(("127.0.0.1", worker.port), timeout=20) for _ in range(150)]
    for raw in (b"\0" * 100, b"GET\r\n\r\n", b"BREW /metrics HTTP/1.1\r\n\r\n", b"GET /metrics HTTP/1.1\r\nx\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", worker.port), timeout=10) as client:
            client.sendall(raw)
            client.shutdown(socket.SHUT_WR)
            assert client.recv(100)[:12] in (b"", b"HTTP/1.1 400", b"HTTP/1.1 405")
    with socket.create_connection(("127.0.0.1", worker.port), timeout=10) as client, pytest.raises(OSError):
        for _ in range(1000):  # a request without an end is cut off
            client.sendall(b"a" * 10_000)
    assert get(worker.port, "/nothing")[0] == 404
    assert get(worker.port, "/metrics?name=x")[0] == 200
    assert silent[-1].recv(1) == b""  # its time is over
    for client in silent:
        client.close()
    assert worker.dispatcher.executor_pids == pids
    assert worker.dispatcher.poll() is None


def test_labels_are_few_whatever_rows_say() -> None:
    stats = Stats()
    for number in range(1000):
        run = _claimed("shop.add", f"customer{number}")
        tally = stats.tally(run)
        tally.count_started(0.1)
        tally.count_ended(0.2)
        tally.count_finished("SUCCESSFUL")
        stats.tally(_claimed(f"no.such{number}", "default"), is_known=False).count_finished("FAILED")
    assert len({queue for _, queue in stats.runs_started} | {"default"}) == MOST_QUEUES + 1
    assert stats.runs_started["shop.add", OTHER] == 1000 - (MOST_QUEUES - 1)
    assert sum(stats.runs_finished.values()) == 2000
    assert {task for task, _, _ in stats.runs_finished} == {"shop.add", OTHER}
    assert sum(histogram.count for histogram in stats.wait_seconds.values()) == 1000
    names = Names(1)
    assert [names.admit(name) for name in ("a", "b", "a")] == ["a", OTHER, "a"]


def test_a_histogram_has_its_values_up_to_each_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 99.0):
        histogram.observe(value)
    assert (histogram.counts, histogram.count, histogram.sum) == ([2, 2, 1], 5, 104.0)


def _claimed(task: str, queue: str) -> ClaimedRun:
    return ClaimedRun(1, 1, task, queue, 0, 1, 0, 0, None, None, "", "[]", "{}")
