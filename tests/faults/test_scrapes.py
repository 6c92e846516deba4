"""Scrapes while things are in trouble: a taken port, no database, no prometheus-client."""

import socket
import time
from pathlib import Path

import pytest

from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.relay import Relay
from tests.kit.runs import wait_until_final
from tests.kit.scrape import free_port, get, scrape, serving
from tests.kit.waiting import wait_for


@pytest.mark.slow
def test_a_taken_port_is_told_of_once_and_had_when_it_is_free(kit: Kit) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        dispatcher = kit.dispatchers("taken", metrics_port=port)
        dispatcher.wait_for_log(f"cannot be served on 127.0.0.1 port {port}")
        wait_until_final(tasks.note.delay())
    wait_for(serving(port), 20, what="the port")
    assert scrape(port).value("django_dispatch_runs_started_total") == 1
    assert dispatcher.log.count("cannot be served") == 1
    dispatcher.terminate()
    assert dispatcher.exit_code() == 0


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["refuse", "swallow"])
def test_a_scrape_answers_while_the_database_is_down(kit: Kit, relay: Relay, fault: str) -> None:
    port = free_port()
    dispatcher = kit.dispatchers("down", database_url=relay.url, metrics_port=port)
    wait_until_final(tasks.note.delay())
    wait_for(lambda: scrape(port).value("django_dispatch_runs_finished_total") == 1)
    getattr(relay, fault)()
    dispatcher.wait_for_log("Trouble with the database")
    ages = []
    for _ in range(12):
        began = time.monotonic()
        found = scrape(port)
        assert time.monotonic() - began < 1
        ages.append(found.value("django_dispatch_queue_figures_age_seconds"))
        assert found.value("django_dispatch_runs_finished_total") == 1
        if ages[-1] > 6:  # so that it was asked again in vain
            break
        time.sleep(0.6)  # a scraper's pace
    assert ages[-1] > 6
    relay.forward()
    wait_for(lambda: scrape(port).value("django_dispatch_queue_figures_age_seconds") < 2, 40, what="fresh figures")
    wait_until_final(tasks.note.delay(), seconds=40)


HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "prometheus_client":
            raise ModuleNotFoundError(name)
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "prometheus_client" else find(name, package)
sys.meta_path.insert(0, Hidden())
"""


@pytest.mark.slow
def test_without_prometheus_client_the_dispatcher_lives_and_says_what_to_install(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDE)
    port = free_port()
    env = {"PYTHONPATH": str(tmp_path)}
    dispatcher = kit.dispatchers("without", metrics_port=port, env=env)
    status, _, text = get(port)
    assert (status, 'pip install "django-dispatch[metrics]"' in text) == (501, True)
    assert get(port, "/nothing")[0] == 404
    dispatcher.wait_for_log('pip install "django-dispatch[metrics]"')
    wait_until_final(tasks.note.delay())


@pytest.mark.slow
def test_what_is_reclaimed_from_the_dead_is_counted(kit: Kit) -> None:
    dead = kit.dispatchers("dead")
    run = tasks.gated.delay("held")
    kit.gate.wait_until_reached("held")
    port = free_port()
    kit.dispatchers("alive", metrics_port=port)
    dead.kill9()
    kit.gate.wait_until_reached("held", times=2)
    kit.gate.open("held")
    wait_until_final(run)
    wait_for(lambda: scrape(port).value("django_dispatch_runs_held") == 0)
    found = scrape(port)
    assert found.by("django_dispatch_runs_reclaimed_total", "queue", "status") == {("default", "READY"): 1}
    assert found.by("django_dispatch_runs_finished_total", "status") == {("SUCCESSFUL",): 1}
    # Its second attempt was due from when it was given back.
    assert found.value("django_dispatch_run_wait_seconds_sum", queue="default") < 20
