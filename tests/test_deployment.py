"""The files of docs/deploy: whole in the docs, true to the settings' defaults, and a dispatcher as process 1."""

import configparser
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from django.core.management import load_command_class

from django_dispatch.conf import DispatchSettings
from django_dispatch.dispatcher import children, shutdown, stats
from tests.kit import tasks
from tests.kit.dispatchers import BASE_DIR
from tests.kit.fixtures import Kit
from tests.kit.runs import wait_until_final
from tests.kit.waiting import wait_for

DEPLOY = BASE_DIR / "docs" / "deploy"
SETTINGS = DispatchSettings()
# All that may go by between SIGTERM and the exit.
LONGEST_STOP_SECONDS = (
    SETTINGS.shutdown_timeout_seconds
    + SETTINGS.cancel_grace_seconds
    + 2 * shutdown.LAST_WRITES_SECONDS
    + shutdown.KILL_SECONDS
    + 2 * children.CLOSE_SECONDS
)


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser()
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(DEPLOY / "django-dispatch.service")
    return parser["Service"]


def instructions() -> dict[str, str]:
    """The Dockerfile's instructions, each by its first word; the last of several."""
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    return dict(line.split(" ", 1) for line in lines)  # type: ignore[arg-type]


def pod() -> dict[str, Any]:
    document = yaml.safe_load((DEPLOY / "kubernetes.yaml").read_text())
    assert (document["apiVersion"], document["kind"]) == ("apps/v1", "Deployment")
    assert document["spec"]["selector"]["matchLabels"] == document["spec"]["template"]["metadata"]["labels"]
    spec: dict[str, Any] = document["spec"]["template"]["spec"]
    return spec


def container() -> dict[str, Any]:
    (found,) = pod()["containers"]
    assert isinstance(found, dict)
    return found


def parsed(arguments: list[str]) -> Any:
    """What rundispatcher makes of its arguments."""
    place = arguments.index("rundispatcher")
    assert arguments[place - 1] == "manage.py"
    parser = load_command_class("django_dispatch", "rundispatcher").create_parser("manage.py", "rundispatcher")
    options = parser.parse_args(arguments[place + 1 :])
    assert options.reload is False
    return options


@pytest.mark.parametrize("name", sorted(path.name for path in DEPLOY.iterdir()))
def test_the_page_shows_each_file_as_it_is(name: str) -> None:
    page = (BASE_DIR / "docs" / "deployment.md").read_text()
    assert f"\n{(DEPLOY / name).read_text()}```" in page
    assert f"(deploy/{name})" in page


def test_the_unit_fits_the_settings() -> None:
    service = unit()
    parsed(service["ExecStart"].split())
    assert (service["Type"], service["KillMode"]) == ("notify", "mixed")
    assert int(service["TimeoutStopSec"]) > LONGEST_STOP_SECONDS
    assert int(service["WatchdogSec"]) > stats.LATE_SECONDS, "a loop is late before the watchdog is"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "django-dispatch.service").read_text()
    here = {"/srv/mysite/venv/bin/python": sys.executable, "/srv/mysite": str(tmp_path), "User=mysite\n": ""}
    for there, replacement in here.items():
        text = text.replace(there, replacement)
    file = tmp_path / "django-dispatch.service"
    file.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, check=False)
    said = [line for line in (done.stdout + done.stderr).splitlines() if "django-dispatch" in line]
    assert (done.returncode, said) == (0, [])


def test_the_image_fits_the_settings() -> None:
    found = instructions()
    parsed(json.loads(found["CMD"]))
    options, _, check = found["HEALTHCHECK"].partition(" CMD ")
    assert json.loads(check) == ["python", "-m", "django_dispatch.alive"]
    assert re.fullmatch(r"(--(interval|timeout|start-period|retries)=\d+s? ?)+", options)
    assert found["EXPOSE"] == str(SETTINGS.metrics_port)
    assert found["STOPSIGNAL"] == "SIGTERM"
    page = (BASE_DIR / "docs" / "deployment.md").read_text()
    patience = {int(number) for number in re.findall(r"(?:--time |stop_grace_period: )(\d+)", page)}
    assert patience == {pod()["terminationGracePeriodSeconds"]}


def test_the_pods_fit_the_settings() -> None:
    spec, main = pod(), container()
    assert spec["terminationGracePeriodSeconds"] > LONGEST_STOP_SECONDS
    assert "lifecycle" not in main
    options = parsed([*main["command"], *main["args"]])
    assert options.metrics_host == "0.0.0.0", "the kubelet comes from outside"
    assert main["ports"] == [{"name": "health", "containerPort": SETTINGS.metrics_port}]
    assert options.node == f"$({main['env'][0]['name']})"
    probes = {name: main[name] for name in main if name.endswith("Probe")}
    asked = {name: (probe["httpGet"]["path"], probe["httpGet"]["port"]) for name, probe in probes.items()}
    assert asked == {
        "startupProbe": ("/healthz", "health"),
        "livenessProbe": ("/healthz", "health"),
        "readinessProbe": ("/readyz", "health"),
    }


def living(family: list[psutil.Process]) -> list[psutil.Process]:
    """Those that are still in the list of processes, as zombies are too."""
    return [process for process in family if process.is_running()]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make namespaces")
def test_as_process_1_it_reaps_what_becomes_its_child_and_drains(kit: Kit) -> None:
    """As in a container without an init: its zygote is killed, and what that leaves is nobody else's."""
    wrapper = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    a = kit.dispatchers("a", is_awaited=False, wrapper=wrapper, lease_ttl=15)
    run = tasks.leave_programs.delay("gate")
    kit.gate.wait_until_reached("gate", seconds=30)
    (first,) = psutil.Process(a.pid).children()
    (zygote,) = first.children()
    family = [zygote, *zygote.children(recursive=True)]
    assert len(family) > 3, "executor and programs"
    executors = zygote.children()
    zygote.kill()
    wait_for(lambda: not living(executors), what="the body's end with its zygote")
    kit.gate.open("gate")
    (run,) = wait_until_final(run, seconds=30)
    assert (run.status, run.attempt) == ("SUCCESSFUL", 2)
    wait_for(lambda: len(living(family)) == 1, what="executor and programs gone, and no zombies; all but the daemon")
    (daemon,) = living(family)
    assert daemon.ppid() == first.pid
    daemon.kill()
    wait_for(lambda: not living(family), what="the daemon reaped")
    first.send_signal(signal.SIGTERM)
    assert a.exit_code() == 0
    assert "nothing was left behind" in a.log
