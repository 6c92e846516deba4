"""The admin: what its pages show, what they refuse, and that reading costs a fixed number of queries and no write."""

import json
import os
import re
import subprocess
import sys
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.contrib.messages import get_messages
from django.db import connection
from django.db.models.functions import Now
from django.http import HttpRequest
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape

from django_dispatch.admin import changelist, display, leases, runs
from django_dispatch.models import Lease, Run, Status

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("any_database")]

SECOND = timedelta(seconds=1)
ALIVE = UUID(int=1)


def a_lease(lease_id: UUID = ALIVE, *, expires_in: timedelta = 60 * SECOND, **fields: Any) -> Lease:
    lease = Lease.objects.create(id=lease_id, **{"node": "web-1", "host": "web-1.example.com"} | fields)
    Lease.objects.filter(pk=lease_id).update(renewed_at=Now() - 3 * SECOND, expires_at=Now() + expires_in)
    return lease


def a_run(status: str = "READY", **fields: Any) -> Run:
    """A run in a status that it could have come to."""
    needed: dict[str, Any] = {}
    if status == "RUNNING":
        needed = {"lease_id": ALIVE, "attempt": 1, "started_at": timezone.now()}
    elif status == "SCHEDULED":
        needed = {"run_after": timezone.now() + timedelta(hours=1)}
    elif status == "BLOCKED":
        needed = {"blocked_by": fields.get("concurrency_key") or "queue:default"}
    elif status in ("SUCCESSFUL", "FAILED", "CANCELLED"):
        needed = {"attempt": 1, "started_at": timezone.now(), "finished_at": timezone.now()}
    return Run.objects.create(**{"task": "shop.tasks.add", "status": status} | needed | fields)


def runs_page(client: Client, **query: Any) -> str:
    response = client.get(reverse("admin:django_dispatch_run_changelist"), query)
    assert response.status_code == 200
    return response.content.decode()


def run_page(client: Client, run: Run) -> str:
    response = client.get(reverse("admin:django_dispatch_run_change", args=[run.pk]))
    assert response.status_code == 200
    return response.content.decode()


def leases_page(client: Client) -> str:
    response = client.get(reverse("admin:django_dispatch_lease_changelist"))
    assert response.status_code == 200
    return response.content.decode()


def act(client: Client, action: str, *selected: Run, **more: Any) -> list[str]:
    """Run an action on the selected runs and return the messages."""
    data = {"action": action, "_selected_action": [run.pk for run in selected]} | more
    response = client.post(reverse("admin:django_dispatch_run_changelist"), data)
    return [str(message) for message in get_messages(response.wsgi_request)]


def listed(html: str) -> list[int]:
    return [int(pk) for pk in re.findall(r'name="_selected_action" value="(\d+)"', html)]


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", html))


def a_client_with(*permissions: str) -> Client:
    user = get_user_model()._default_manager.create(username="limited", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


# the list of runs


def test_every_status_has_its_badge(admin_client: Client) -> None:
    a_lease()
    for status in Status:
        a_run(status)
    html = runs_page(admin_client)
    for status in Status:
        assert f'data-code="{status}">{status.label}<' in html


def test_a_status_that_no_code_knows_is_shown_as_it_is(admin_client: Client) -> None:
    a_run("<ZOMBIE>")
    a_run("")
    html = runs_page(admin_client)
    assert 'data-code="&lt;ZOMBIE&gt;">&lt;ZOMBIE&gt;<' in html
    assert ">(empty)<" in html


def test_a_row_tells_attempts_duration_and_node(admin_client: Client) -> None:
    a_lease()
    run = a_run("RUNNING", attempt=6, failures=1, max_attempts=3)
    Run.objects.filter(pk=run.pk).update(started_at=Now() - 252 * SECOND, enqueued_at=Now() - timedelta(hours=5))
    text = text_of(runs_page(admin_client))
    assert "6 (1 of 3 failed)" in text
    assert re.search(r"4 min 1\d s", text)
    assert "5 h ago" in text
    assert "web-1" in text


def test_a_lease_that_expired_or_is_gone_shows(admin_client: Client) -> None:
    a_lease(expires_in=-SECOND)
    a_run("RUNNING")
    assert ">expired<" in runs_page(admin_client)
    Lease.objects.all().delete()
    assert ">gone<" in runs_page(admin_client)


def test_no_value_of_a_row_becomes_markup(admin_client: Client) -> None:
    evil = "<script>alert(1)</script>"
    run = a_run("FAILED", task=evil, queue=evil, args=[evil], kwargs={evil: evil}, result=evil, errors=[
        {"message": evil, "traceback": evil, "kind": evil, "exception_class": evil, "executor": evil, "at": evil}, evil,
    ], progress={"done": 1, "total": 2, "message": evil}, meta={evil: evil})  # fmt: skip
    a_lease(node=evil, host=evil, queues=[evil], process={evil: evil})
    a_run("RUNNING")
    lease_page = admin_client.get(reverse("admin:django_dispatch_lease_change", args=[ALIVE])).content.decode()
    for html in (runs_page(admin_client), run_page(admin_client, run), leases_page(admin_client), lease_page):
        assert evil not in html
        assert escape(evil) in html or escape("<script>alert(1)<") in html


@pytest.mark.parametrize("page", ["run", "lease"])
def test_a_page_costs_the_same_queries_whatever_it_shows(admin_client: Client, page: str) -> None:
    address = reverse(f"admin:django_dispatch_{page}_changelist")

    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            assert admin_client.get(address).status_code == 200
        return len(captured)

    a_lease()
    a_run("RUNNING")
    with_one = queries()
    for number in range(2, 51):
        a_lease(UUID(int=number))
        a_run("RUNNING", lease_id=UUID(int=number if number % 5 else number + 1000))
    assert queries() == with_one


def test_reading_neither_writes_nor_locks(admin_client: Client) -> None:
    a_lease()
    run = a_run("RUNNING")
    with CaptureQueriesContext(connection) as captured:
        runs_page(admin_client)
        runs_page(admin_client, status="RUNNING", queue="default", task=run.task, lease=str(ALIVE))
        run_page(admin_client, run)
        leases_page(admin_client)
        admin_client.get(reverse("admin:django_dispatch_lease_change", args=[ALIVE]))
    assert len(captured) > 10
    for query in captured:
        assert not re.search(r"\b(INSERT|UPDATE|DELETE|FOR (UPDATE|NO KEY|SHARE))\b", query["sql"]), query["sql"]


def test_the_list_reads_no_wide_column(admin_client: Client) -> None:
    a_run()
    with CaptureQueriesContext(connection) as captured:
        runs_page(admin_client)
    statements = " ".join(query["sql"] for query in captured)
    assert '"django_dispatch_run"."queue"' in statements
    for column in ("args", "kwargs", "result", "errors", "progress", "meta"):
        assert f'"django_dispatch_run"."{column}"' not in statements


def test_the_newest_run_comes_first_whatever_the_address_asks_for(admin_client: Client) -> None:
    expected = [a_run(queue=queue).pk for queue in ("b", "c", "a")][::-1]
    for order in ("", "1", "2", "3.-4", "-5"):
        assert listed(runs_page(admin_client, o=order)) == expected


# filters and search


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"status": "RUNNING"}, [3]),
        ({"status": "READY"}, [2, 1]),
        ({"status": "nonsense"}, []),
        ({"queue": "mail"}, [2]),
        ({"queue": "nonsense"}, []),
        ({"queue": "mail\0"}, [2]),
        ({"task": "shop.tasks.other"}, [3]),
        ({"lease": str(ALIVE)}, [3]),
        ({"lease": str(UUID(int=9))}, []),
        ({"lease": "nonsense"}, []),
        ({"status": "READY", "queue": "default"}, [1]),
    ],
)
def test_filters_find_their_runs(admin_client: Client, query: dict[str, str], found: list[int]) -> None:
    a_lease()
    a_run(pk=1)
    a_run(pk=2, queue="mail")
    a_run("RUNNING", pk=3, task="shop.tasks.other")
    assert listed(runs_page(admin_client, **query)) == found


def test_filter_choices_come_from_the_newest_runs(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelist, "SAMPLE_SIZE", 2)
    for queue in ("oldest", "newer", "newest"):
        a_run(queue=queue)
    html = runs_page(admin_client)
    assert "?queue=newer" in html
    assert "?queue=newest" in html
    assert "?queue=oldest" not in html
    # The value in the address stays a choice, so that the page shows what it is filtered by.
    assert re.search(r'<li class="selected">\s*<a[^>]*>oldest</a>', runs_page(admin_client, queue="oldest"))


def test_no_statement_of_a_page_looks_for_distinct_values(admin_client: Client) -> None:
    a_run()
    with CaptureQueriesContext(connection) as captured:
        runs_page(admin_client, _facets="True")
    assert all("DISTINCT" not in query["sql"] and "GROUP BY" not in query["sql"] for query in captured)
    assert all(
        "LIMIT" in query["sql"] or "EXPLAIN" in query["sql"]
        for query in captured
        if 'FROM "django_dispatch_run"' in query["sql"]
    )


@pytest.mark.parametrize("term", ["7", " 7 ", "#7", "007"])
def test_a_number_finds_the_run(admin_client: Client, term: str) -> None:
    a_run(pk=7)
    a_run(pk=77)
    assert listed(runs_page(admin_client, q=term)) == [7]


@pytest.mark.parametrize("term", ["shop", "-7", "7.0", "7 77", "²", "9" * 19, "9" * 5000, "%", "#"])
def test_anything_else_finds_nothing_and_says_so(admin_client: Client, term: str) -> None:
    a_run(pk=7)
    html = runs_page(admin_client, q=term)
    if term != "#":
        assert listed(html) == []
        assert "found by their number only" in html


# the count


def test_a_filtered_list_is_counted_up_to_the_limit(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelist, "COUNT_LIMIT", 3)
    for _ in range(3):
        a_run()
    assert "3 runs" in text_of(runs_page(admin_client, status="READY"))
    assert "of more" not in runs_page(admin_client, status="READY")
    a_run()
    assert "the newest 3 runs of more" in text_of(runs_page(admin_client, status="READY"))


@pytest.mark.postgres
def test_a_large_table_is_not_counted_but_estimated(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(60):
        a_run()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE django_dispatch_run")
    assert "60 runs" in text_of(runs_page(admin_client))
    monkeypatch.setattr(changelist, "COUNT_LIMIT", 10)
    with CaptureQueriesContext(connection) as captured:
        html = runs_page(admin_client)
    assert "about 60 runs" in text_of(html)
    assert len(listed(html)) == 50
    assert not any("COUNT(" in query["sql"] for query in captured)


# one run


def test_a_run_of_null_and_odd_values_can_be_read(admin_client: Client) -> None:
    odd: list[Any] = [
        None,
        1,
        "text",
        [],
        {},
        {"attempt": None, "at": 5, "traceback": 7, "kind": ["x"]},
        {"at": "2026-13-40T99:99"},
    ]
    progress: list[Any] = ["half", 5, [], {}, {"done": "x"}, {"done": 5, "total": 0}, {"done": 9, "total": 3}]
    for value in progress:
        html = run_page(
            admin_client, a_run("ZOMBIE", errors=odd, progress=value, args="x", kwargs=5, result=False, meta=[])
        )
        assert "ZOMBIE" in html


def test_errors_are_blocks_with_their_traceback_the_newest_first(admin_client: Client) -> None:
    entry: dict[str, Any] = {
        "kind": "exception",
        "exception_class": "ValueError",
        "executor": "web-1/2",
        "at": "2026-11-29T10:00:00Z",
    }
    errors = [
        entry | {"attempt": number, "message": f"no {number}", "traceback": f"line {number}"} for number in (1, 2)
    ]
    html = run_page(admin_client, a_run("FAILED", errors=errors))
    assert html.index("ValueError: no 2") < html.index("ValueError: no 1")
    assert '<pre class="dispatch-text">line 1</pre>' in html
    assert re.search(r"attempt 2 · exception · web-1/2 · 2026-11-29 \d\d:00:00", html)


def test_large_payloads_are_cut_off_with_a_note(admin_client: Client) -> None:
    small = run_page(admin_client, a_run("SUCCESSFUL", result=["x" * 50_000]))
    assert "Cut off" not in small
    html = run_page(admin_client, a_run("SUCCESSFUL", args=["y" * 300_000], result=[{"row": n} for n in range(50_000)]))
    assert html.count("Cut off: only the first 100 kB are shown.") == 2
    assert len(html) < 250_000 + len(small)


def test_progress_is_a_bar(admin_client: Client) -> None:
    a_lease()
    html = run_page(admin_client, a_run("RUNNING", progress={"done": 1500, "total": 6000, "message": "rows"}))
    assert '<progress max="6000" value="1500"></progress> 1,500 of 6,000 rows' in html


def test_a_run_that_does_not_exist_is_no_error(admin_client: Client) -> None:
    for number in ("1", "x", "9" * 30):
        response = admin_client.get(reverse("admin:django_dispatch_run_change", args=[number]))
        assert response.status_code == 302


def test_nothing_can_be_added_or_edited(admin_client: Client) -> None:
    a_lease()
    run = a_run("RUNNING")
    rows: list[tuple[str, Any]] = [("run", run.pk), ("lease", ALIVE)]
    for model, pk in rows:
        assert admin_client.get(reverse(f"admin:django_dispatch_{model}_add")).status_code == 403
        change = reverse(f"admin:django_dispatch_{model}_change", args=[pk])
        assert 'name="_save"' not in admin_client.get(change).content.decode()
        assert admin_client.post(change, {"queue": "other", "node": "other"}).status_code == 403
        assert (
            admin_client.post(reverse(f"admin:django_dispatch_{model}_delete", args=[pk]), {"post": "yes"}).status_code
            == 403
        )
    assert Run.objects.get().queue == "default"
    assert Lease.objects.get().node == "web-1"


# deleting


def test_a_final_run_can_be_deleted(admin_client: Client) -> None:
    run = a_run("FAILED")
    address = reverse("admin:django_dispatch_run_delete", args=[run.pk])
    assert admin_client.get(address).status_code == 200
    admin_client.post(address, {"post": "yes"})
    assert not Run.objects.exists()


def test_many_final_runs_can_be_deleted_at_once(admin_client: Client) -> None:
    final = [a_run(status) for status in ("SUCCESSFUL", "FAILED", "CANCELLED")]
    kept = a_run("FAILED")
    act(admin_client, "delete_selected", *final, post="yes")
    assert list(Run.objects.all()) == [kept]


def test_a_selection_with_a_run_that_has_not_ended_is_refused_and_says_why(admin_client: Client) -> None:
    selected = [a_run("FAILED"), a_run("READY")]
    data = {"action": "delete_selected", "_selected_action": [run.pk for run in selected]}
    confirmations: list[dict[str, Any]] = [{}, {"post": "yes"}]
    for confirmed in confirmations:
        response = admin_client.post(reverse("admin:django_dispatch_run_changelist"), data | confirmed)
        assert f"{selected[1]} has not ended: cancel it first" in response.content.decode()
    assert Run.objects.count() == 2


def test_a_selection_that_is_too_large_is_not_deleted(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "MAX_SELECTED", 2)
    act(admin_client, "delete_selected", *[a_run("FAILED") for _ in range(3)], post="yes")
    assert Run.objects.count() == 3


def test_a_run_that_is_not_final_by_now_survives_the_deletion() -> None:
    waiting, other = a_run(), a_run("RUNNING")
    a_run("FAILED")
    run_admin = runs.RunAdmin(Run, admin.site)
    run_admin.delete_queryset(HttpRequest(), Run.objects.exclude(pk=other.pk))
    run_admin.delete_model(HttpRequest(), other)
    assert set(Run.objects.values_list("pk", flat=True)) == {waiting.pk, other.pk}


# actions


def test_cancel_tells_each_outcome(admin_client: Client) -> None:
    a_lease()
    waiting, running, final = a_run(), a_run("RUNNING"), a_run("SUCCESSFUL")
    messages = act(admin_client, "cancel", waiting, a_run("BLOCKED"), a_run("SCHEDULED"), running, final)
    assert messages == [
        "3 cancelled.",
        "1 asked to stop; each ends when its body has ended.",
        "1 already ended, left as they are.",
    ]
    statuses = dict(Run.objects.values_list("pk", "status"))
    assert (statuses[waiting.pk], statuses[running.pk], statuses[final.pk]) == ("CANCELLED", "RUNNING", "SUCCESSFUL")
    running.refresh_from_db()
    assert running.cancel_requested_at is not None
    assert "asked to stop" in runs_page(admin_client)


def test_run_again_makes_new_runs_of_those_that_ended(admin_client: Client) -> None:
    first, second, waiting = a_run("FAILED", args=[1]), a_run("SUCCESSFUL", args=[2]), a_run(args=[3])
    messages = act(admin_client, "run_again", first, second, waiting)
    assert messages == [
        "2 enqueued again, as new runs.",
        "1 skipped: only a run that has ended can be run again.",
    ]
    copies = Run.objects.filter(pk__gt=waiting.pk).order_by("pk")
    assert [(copy.status, copy.args, copy.task) for copy in copies] == [
        ("READY", [1], first.task),
        ("READY", [2], first.task),
    ]
    first.refresh_from_db()
    assert first.status == "FAILED"


def test_select_all_acts_on_the_newest_runs_up_to_a_limit(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "MAX_SELECTED", 2)
    oldest = a_run()
    a_run()
    a_run()
    messages = act(admin_client, "cancel", oldest, select_across="1")
    assert messages == ["Only the newest 2 were taken. Select again.", "2 cancelled."]
    oldest.refresh_from_db()
    assert oldest.status == "READY"


@pytest.mark.parametrize("action", ["cancel", "run_again", "delete_selected"])
def test_who_may_only_view_has_no_action(action: str) -> None:
    viewer = a_client_with("view_run", "view_lease")
    run = a_run("READY" if action == "cancel" else "FAILED")
    assert listed(runs_page(viewer)) == []
    assert "dispatch-badge" in runs_page(viewer)
    assert "dispatch-badge" in run_page(viewer, run)
    act(viewer, action, run, post="yes")
    assert list(Run.objects.values_list("pk", "status")) == [(run.pk, run.status)]


def test_who_may_change_can_cancel_but_not_delete() -> None:
    operator = a_client_with("view_run", "change_run")
    run, final = a_run(), a_run("FAILED")
    assert act(operator, "cancel", run) == ["1 cancelled."]
    act(operator, "delete_selected", final, post="yes")
    assert Run.objects.count() == 2


def test_who_may_do_nothing_sees_nothing() -> None:
    stranger = a_client_with()
    run = a_run()
    for name, args in (("changelist", []), ("change", [run.pk]), ("delete", [run.pk])):
        assert stranger.get(reverse(f"admin:django_dispatch_run_{name}", args=args)).status_code == 403


def test_an_action_needs_a_post(admin_client: Client) -> None:
    run = a_run()
    query = {"action": "cancel", "_selected_action": str(run.pk), "index": "0"}
    admin_client.get(reverse("admin:django_dispatch_run_changelist"), query)
    run.refresh_from_db()
    assert run.status == "READY"


# leases


def test_leases_tell_their_state_by_the_database_clock(admin_client: Client) -> None:
    a_lease(queues=["mail", "imports"], slots=4, pid=4711)
    a_lease(UUID(int=2), expires_in=-4 * SECOND, node="web-2")
    a_lease(UUID(int=3), state=Lease.State.DRAINING, node="web-3")
    Run.objects.bulk_create(Run(task="t", status="RUNNING", lease_id=ALIVE) for _ in range(3))
    html = leases_page(admin_client)
    text = text_of(html)
    assert re.search(r"web-1 web-1\.example\.com 4711 active mail, imports 4 3 [34] s ago in (59|60) s|in 59 s", text)
    assert re.search(r"expired [45] s ago", text)
    for code in ("ACTIVE", "EXPIRED", "DRAINING"):
        assert html.count(f'data-code="{code}"') == 1
    assert f'?lease={ALIVE}">3</a>' in html


def test_a_lease_page_shows_who_it_is(admin_client: Client) -> None:
    a_lease(process={"boot_id": "abc"}, queues=[])
    html = admin_client.get(reverse("admin:django_dispatch_lease_change", args=[ALIVE])).content.decode()
    assert str(ALIVE) in html
    assert escape('"boot_id": "abc"') in html
    assert ">all<" in html


@pytest.mark.postgres
def test_held_runs_are_counted_by_the_lease_index(admin_client: Client) -> None:
    a_lease()
    with CaptureQueriesContext(connection) as captured:
        leases_page(admin_client)
    (statement,) = [query["sql"] for query in captured if "held_runs" in query["sql"]]
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute("EXPLAIN " + statement)
        assert "dispatch_run_lease" in json.dumps(cursor.fetchall())


# other set-ups


def test_the_pages_read_the_database_that_dispatch_names(settings: Any) -> None:
    settings.DISPATCH = {"DATABASE": "queue"}
    assert runs.RunAdmin(Run, admin.site).get_queryset(HttpRequest()).db == "queue"
    assert leases.LeaseAdmin(Lease, admin.site).get_queryset(HttpRequest()).db == "queue"


def test_the_pages_work_without_time_zones(admin_client: Client, settings: Any) -> None:
    settings.USE_TZ = False
    a_lease()
    run = a_run("RUNNING", errors=[{"message": "no", "at": "2026-11-29T10:00:00+00:00"}])
    assert re.search(r"\b\d+ s ago", runs_page(admin_client))
    assert re.search(r"\d\d:\d\d:\d\d \(\d+ s ago\)", text_of(run_page(admin_client, run)))
    assert re.search(r"\b\d+ s ago", leases_page(admin_client))


def test_the_package_works_without_the_admin_app() -> None:
    code = (
        "from django.conf import settings; import django; settings.configure(INSTALLED_APPS=['django_dispatch'],"
        "DATABASES={'default': {'ENGINE': 'django.db.backends.postgresql', 'NAME': 'none'}}); django.setup();"
        "import django_dispatch.admin; from django.core.management import call_command; call_command('check')"
    )
    environment = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# how values are shown


@pytest.mark.parametrize(
    ("span", "shown"),
    [
        (timedelta(0), "0 ms"),
        (-SECOND, "0 ms"),
        (timedelta(milliseconds=4.4), "4 ms"),
        (3.24 * SECOND, "3.2 s"),
        (47.9 * SECOND, "47 s"),
        (60 * SECOND, "1 min 0 s"),
        (252 * SECOND, "4 min 12 s"),
        (3600 * SECOND, "1 h 0 min"),
        (timedelta(days=3, hours=4, minutes=5), "3 d 4 h"),
    ],
)
def test_a_length_has_its_two_largest_units(span: timedelta, shown: str) -> None:
    assert display.length(span) == shown


def test_an_entry_of_any_shape_is_a_block() -> None:
    entries: list[Any] = [None, 1, "text", [], {}, {"attempt": None, "at": 5, "traceback": 7}]
    assert display.error_blocks(entries).count('<div class="dispatch-error">') == len(entries)
    assert "2026-13-40T99:99" in display.error_blocks([{"message": "no", "at": "2026-13-40T99:99:99"}])
    assert "text" in display.error_blocks("text")
    assert display.error_blocks([]) == display.error_blocks(None) == display.EMPTY


def test_the_size_of_an_executor_that_died_is_shown() -> None:
    message = "Its executor died: killed by SIGKILL, out of memory."
    html = display.error_blocks([{"kind": "lost", "message": message, "executor": "web1:7", "peak_kb": 300 * 1024}])
    assert message in html
    assert "lost · web1:7 · peak memory 300 MB" in html
    html = display.error_blocks([{"kind": "lost", "message": message, "log": "WARNING <shop>: low", "note": "<odd>"}])
    assert "WARNING &lt;shop&gt;: low" in html
    assert "&lt;odd&gt;" in html
    assert "peak memory" not in display.error_blocks(
        [{"message": "no", "peak_kb": 0}, {"message": "no", "peak_kb": "x"}]
    )


def test_only_the_newest_errors_are_shown() -> None:
    html = display.error_blocks([{"message": f"no {number}."} for number in range(60)])
    assert "no 59." in html
    assert "no 10." in html
    assert "no 9." not in html
    assert "The newest 50 of 60." in html


@pytest.mark.parametrize("total", [0, -1, None, True, "6", float("inf"), float("nan")])
def test_progress_without_a_sensible_total_is_no_bar(total: Any) -> None:
    assert "<progress" not in display.progress_bar({"done": 1, "total": total})


def test_what_is_cut_off_is_not_even_encoded() -> None:
    class Unprintable:
        def __repr__(self) -> str:
            raise AssertionError

    assert "Cut off" in display.json_block(["x" * 200_000, Unprintable()])


def test_a_run_that_waits_at_a_limit_says_at_which(admin_client: Client) -> None:
    limits = {"concurrency_key": "key:tenant-7", "concurrency_limit": 3, "unique_key": "discard:key:tenant-7"}
    run = a_run("BLOCKED", **limits, fair_key="of tenant 7")
    page = run_page(admin_client, run)
    assert "Blocked by" in page
    assert page.count("key:tenant-7") >= 3
    assert "Fair key" in page
    assert "of tenant 7" in page
    assert "discard:key:tenant-7" in page
