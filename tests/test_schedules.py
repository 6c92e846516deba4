"""When schedules are due: rules in time zones, across the changes of clocks, and what becomes of missed occurrences."""

import time
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_dispatch import Cron, Every, InvalidOption, InvalidTask, task
from django_dispatch.schedules import (
    LONGEST_CRON,
    Plan,
    Policy,
    Rule,
    check_cron,
    check_policy,
    check_zone,
    plan_due,
    plan_first,
)

HOUR = timedelta(hours=1)
NOW = datetime(2026, 3, 10, 12, 2, 30, tzinfo=UTC)


def at(text: str, zone: str = "UTC") -> datetime:
    """An instant by the clock on the wall of a zone; the later one of two with a ``*`` behind it."""
    wall = datetime.fromisoformat(text.removesuffix("*")).replace(tzinfo=ZoneInfo(zone), fold=int(text.endswith("*")))
    return wall.astimezone(UTC)


def times(cron: str, zone: str, first: str, last: str) -> list[str]:
    """The times of a cron between two instants, by the clock on the wall, the second of two equal ones with a ``*``."""
    rule, end = Rule(cron=cron, time_zone=zone), at(last, zone)
    found = []
    for moment in rule.times_after(at(first, zone) - timedelta(microseconds=1)):
        if moment >= end:
            return found
        wall = moment.astimezone(ZoneInfo(zone))
        found.append(f"{wall:%d %H:%M}{'*' if wall.fold else ''}")
    return found


class TestChangesOfClocks:
    """Fixed hours: once a day, whatever the clocks do. Wildcards: as time passes, nothing twice, nothing in a gap."""

    @pytest.mark.parametrize(
        ("zone", "day", "cron", "expected"),
        [
            # 02:00 becomes 03:00
            ("Europe/Berlin", "2026-03-29", "30 2 * * *", ["29 03:00"]),
            ("Europe/Berlin", "2026-03-29", "0,30 2 * * *", ["29 03:00"]),
            ("Europe/Berlin", "2026-03-29", "0 1-4 * * *", ["29 01:00", "29 03:00", "29 04:00"]),
            ("Europe/Berlin", "2026-03-29", "0 0 * * *", ["29 00:00"]),
            ("Europe/Berlin", "2026-03-29", "*/30 1-3 * * *", ["29 01:00", "29 01:30", "29 03:00", "29 03:30"]),
            # 03:00 becomes 02:00
            ("Europe/Berlin", "2026-10-25", "30 2 * * *", ["25 02:30"]),
            ("Europe/Berlin", "2026-10-25", "0 1-4 * * *", ["25 01:00", "25 02:00", "25 03:00", "25 04:00"]),
            ("Europe/Berlin", "2026-10-25", "*/30 2 * * *", ["25 02:00", "25 02:30", "25 02:00*", "25 02:30*"]),
            ("Europe/Berlin", "2026-10-25", "15 30 2 * * *", ["25 02:30"]),
            # 02:00 becomes 03:00, and 01:00 again
            ("America/New_York", "2026-03-08", "30 2 * * *", ["08 03:00"]),
            ("America/New_York", "2026-03-08", "*/30 1-3 * * *", ["08 01:00", "08 01:30", "08 03:00", "08 03:30"]),
            ("America/New_York", "2026-11-01", "30 1 * * *", ["01 01:30"]),
            ("America/New_York", "2026-11-01", "*/30 1 * * *", ["01 01:00", "01 01:30", "01 01:00*", "01 01:30*"]),
            # half an hour: 02:00 becomes 02:30, and 01:30 again
            ("Australia/Lord_Howe", "2026-10-04", "15 2 * * *", ["04 02:30"]),
            ("Australia/Lord_Howe", "2026-10-04", "*/15 1-2 * * *",
             ["04 01:00", "04 01:15", "04 01:30", "04 01:45", "04 02:30", "04 02:45"]),
            ("Australia/Lord_Howe", "2026-04-05", "45 1 * * *", ["05 01:45"]),
            ("Australia/Lord_Howe", "2026-04-05", "*/15 1 * * *",
             ["05 01:00", "05 01:15", "05 01:30", "05 01:45", "05 01:30*", "05 01:45*"]),
            # at midnight: there is no 00:00, and 23:00 twice
            ("America/Santiago", "2026-09-06", "0 0 * * *", ["06 01:00"]),
            ("America/Santiago", "2026-09-06", "*/30 0-1 * * *", ["06 01:00", "06 01:30"]),
            ("America/Santiago", "2026-04-04", "30 23 * * *", ["04 23:30"]),
            ("America/Santiago", "2026-04-04", "*/30 23 * * *", ["04 23:00", "04 23:30", "04 23:00*", "04 23:30*"]),
            # where clocks never change
            ("Asia/Tokyo", "2026-03-29", "30 2 * * *", ["29 02:30"]),
            ("Asia/Kolkata", "2026-03-29", "0 0 * * *", ["29 00:00"]),
        ],
    )  # fmt: skip
    def test_on_the_day(self, zone: str, day: str, cron: str, expected: list[str]) -> None:
        following = (datetime.fromisoformat(day) + timedelta(days=1)).isoformat()
        first = f"{day}T01:00" if zone == "America/Santiago" and day == "2026-09-06" else day
        assert times(cron, zone, first, following) == expected

    @pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago"])
    @pytest.mark.parametrize("cron", ["30 2 * * *", "0 0 * * *", "30 1 * * *", "30 23 * * *"])
    def test_a_daily_time_comes_once_on_each_date_of_a_year(self, zone: str, cron: str) -> None:
        rule = Rule(cron=cron, time_zone=zone)
        dates = [
            moment.astimezone(ZoneInfo(zone)).date()
            for moment in islice(rule.times_after(at("2026-01-01", zone) - timedelta(seconds=1)), 365)
        ]
        assert all(later - earlier == timedelta(days=1) for earlier, later in pairwise(dates))

    @pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago"])
    def test_every_hour_comes_every_hour(self, zone: str) -> None:
        moments = list(islice(Rule(cron="0 * * * *", time_zone=zone).times_after(at("2026-01-01")), 8700))
        longest = timedelta(minutes=90) if zone == "Australia/Lord_Howe" else HOUR
        assert {later - earlier for earlier, later in pairwise(moments)} <= {HOUR, longest}

    def test_who_starts_within_the_repeated_hour_goes_on_from_there(self) -> None:
        fixed = Rule(cron="30 2 * * *", time_zone="Europe/Berlin")
        assert fixed.next_after(at("2026-10-25T02:10*", "Europe/Berlin")) == at("2026-10-26T02:30", "Europe/Berlin")
        wild = Rule(cron="*/20 * * * *", time_zone="Europe/Berlin")
        assert wild.next_after(at("2026-10-25T02:10*", "Europe/Berlin")) == at("2026-10-25T02:20*", "Europe/Berlin")
        assert wild.next_after(at("2026-10-25T02:50", "Europe/Berlin")) == at("2026-10-25T02:00*", "Europe/Berlin")

    @settings(max_examples=150, deadline=None)
    @given(
        cron=st.sampled_from(["* * * * *", "*/7 * * * *", "30 * * * *", "*/10 1-3 * * *", "5 2 * * *", "0 0 * * 0",
                              "*/13 30 2 * * *", "0 */2 * * *", "0 0 1 * *", "59 23 * * *"]),
        zone=st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago",
                              "Africa/Casablanca", "Pacific/Apia", "Asia/Tokyo", "UTC"]),
        begin=st.datetimes(datetime(2011, 1, 1), datetime(2030, 1, 1)),
    )  # fmt: skip
    def test_times_only_go_on_wherever_one_begins(self, cron: str, zone: str, begin: datetime) -> None:
        rule, moment = Rule(cron=cron, time_zone=zone), begin.replace(tzinfo=UTC)
        found = list(islice(rule.times_after(moment), 30))
        assert all(earlier < later for earlier, later in pairwise([moment, *found]))
        assert list(islice(rule.times_after(found[9]), 20)) == found[10:]


class TestCron:
    @pytest.mark.parametrize(
        ("cron", "first"),
        [
            ("*/5 * * * *", "2026-03-10T12:05"),
            ("*/10 * * * * *", "2026-03-10T12:02:40"),
            ("0 9 * * mon-fri", "2026-03-11T09:00"),
            ("0 0 29 2 *", "2028-02-29"),
            ("0 0 L * *", "2026-03-31"),
            ("0 0 * * MON#2", "2026-04-13"),
            ("@hourly", "2026-03-10T13:00"),
            (" @Daily ", "2026-03-11"),
        ],
    )
    def test_its_next_time(self, cron: str, first: str) -> None:
        check_cron(cron)
        assert Rule(cron=cron).next_after(NOW) == at(first)

    @pytest.mark.parametrize(
        "cron",
        ["", "0 0 30 2 *", "* * * * MON#9", "61 * * * *", "* * * *", "@never", "* * * * * * *", "a b c d e",
         "*/0 * * * *", "٣ * * * *", "\0 * * * *", "L/2 * * * *", "1,," + "1," * LONGEST_CRON + " * * * *"],
    )  # fmt: skip
    def test_nonsense_is_refused(self, cron: str) -> None:
        with pytest.raises(InvalidOption):
            check_cron(cron)

    def test_a_rule_that_no_time_fits_is_found_out_soon(self) -> None:
        began = time.process_time()
        plan = plan_first(Rule(cron="* * */20 * 1L"), now=NOW, last_at=None)
        assert time.process_time() - began < 0.5
        assert plan == Plan(problem="No time ever fits this rule.")

    def test_in_words(self) -> None:
        assert Rule(cron="0 3 * * *", time_zone="Europe/Paris").in_words() == "At 03:00 every day (Europe/Paris)"
        assert Rule(cron="@hourly").in_words() == "At the start of every hour (UTC)"
        assert Rule(every=timedelta(minutes=90)).in_words() == "Every 1 hour 30 minutes"
        assert Rule(every=timedelta(seconds=2.5)).in_words() == "Every 2.5 seconds"
        assert Rule(once_at=NOW).in_words() == "Once"


class TestOtherRules:
    def test_an_interval_is_counted_from_1970_whoever_counts(self) -> None:
        rule = Rule(every=timedelta(minutes=5))
        assert rule.next_after(NOW) == at("2026-03-10T12:05")
        assert rule.next_after(at("2026-03-10T12:05")) == at("2026-03-10T12:10")

    def test_or_from_its_start(self) -> None:
        rule = Rule(every=HOUR, start_at=at("2026-03-10T12:17"))
        assert list(islice(rule.times_after(NOW), 2)) == [at("2026-03-10T12:17"), at("2026-03-10T13:17")]
        assert rule.next_after(at("2027-01-01")) == at("2027-01-01T00:17")

    def test_start_and_end_belong_to_it(self) -> None:
        rule = Rule(cron="0 * * * *", start_at=at("2026-03-11T00:00"), end_at=at("2026-03-11T02:00"))
        assert list(rule.times_after(NOW)) == [at("2026-03-11T00:00"), at("2026-03-11T01:00"), at("2026-03-11T02:00")]

    def test_a_single_time_comes_once(self) -> None:
        assert list(Rule(once_at=NOW + HOUR).times_after(NOW)) == [NOW + HOUR]

    @pytest.mark.parametrize(
        "rule",
        [
            Rule(),
            Rule(cron="* * * * *", every=HOUR),
            Rule(every=timedelta(0)),
            Rule(every=timedelta(milliseconds=999)),
            Rule(every=timedelta(days=40_000)),
            Rule(cron="* * * * *", time_zone="Mars/Olympus"),
            Rule(cron="* * * * *", time_zone=""),
            Rule(cron="* * * * *", time_zone="../etc/passwd"),
            Rule(cron="* * * * *", start_at=NOW, end_at=NOW - HOUR),
        ],
    )
    def test_nonsense_is_refused_and_planned_as_a_problem(self, rule: Rule) -> None:
        with pytest.raises(InvalidOption) as refused:
            rule.check()
        assert plan_first(rule, now=NOW, last_at=None) == Plan(problem=str(refused.value))
        assert plan_due(rule, Policy(), now=NOW, due_at=NOW, limit=9) == Plan(problem=str(refused.value))

    def test_policies_that_there_are_not_are_refused(self) -> None:
        with pytest.raises(InvalidOption, match="catch_up must be one of 'none', 'last', 'all', not 'some'"):
            check_policy("some", HOUR, "allow")
        with pytest.raises(InvalidOption, match="overlap"):
            check_policy("all", HOUR, "queue")
        with pytest.raises(InvalidOption, match="catch_up_window"):
            check_policy("all", -HOUR, "allow")

    def test_zones_are_those_of_the_system(self) -> None:
        check_zone("Europe/Paris")
        with pytest.raises(InvalidOption, match="pip install tzdata"):
            check_zone("Europe")


class TestPlans:
    def plan(self, policy: Policy, *, due_at: datetime, limit: int = 100, cron: str = "*/5 * * * *") -> Plan:
        return plan_due(Rule(cron=cron), policy, now=NOW, due_at=due_at, limit=limit)

    def test_a_new_rule_begins_now(self) -> None:
        plan = plan_first(Rule(cron="*/5 * * * *"), now=NOW, last_at=None)
        assert plan == Plan(next_at=at("2026-03-10T12:05"))

    def test_a_changed_rule_does_not_repeat_what_was(self) -> None:
        plan = plan_first(Rule(cron="*/5 * * * *"), now=NOW - HOUR, last_at=NOW)
        assert plan == Plan(next_at=at("2026-03-10T12:05"))

    def test_a_single_time_that_has_just_passed_is_due(self) -> None:
        rule = Rule(once_at=NOW - timedelta(seconds=1))
        assert plan_first(rule, now=NOW, last_at=None).next_at == rule.once_at
        assert plan_first(rule, now=NOW, last_at=rule.once_at) == Plan()

    def test_a_rule_that_has_ended_is_no_problem(self) -> None:
        assert plan_first(Rule(cron="* * * * *", end_at=NOW - HOUR), now=NOW, last_at=None) == Plan()

    def test_in_time_it_is_one_occurrence(self) -> None:
        for policy in (Policy("none"), Policy("last"), Policy("all"), Policy("all", overlap="skip")):
            plan = plan_due(Rule(cron="*/5 * * * *"), policy, now=at("2026-03-10T12:00:00.004"),
                            due_at=at("2026-03-10T12:00"), limit=9)  # fmt: skip
            assert plan == Plan((at("2026-03-10T12:00"),), at("2026-03-10T12:05"))

    def test_a_window_of_nothing_is_no_hindrance_in_time(self) -> None:
        plan = self.plan(Policy("last", timedelta(0)), due_at=at("2026-03-10T12:02"), cron="* * * * *")
        assert plan.slots == (at("2026-03-10T12:02"),)

    def test_after_three_hours_none_enqueues_nothing_and_goes_on(self) -> None:
        assert self.plan(Policy("none"), due_at=NOW - 3 * HOUR) == Plan((), at("2026-03-10T12:05"))

    def test_after_three_hours_last_enqueues_one(self) -> None:
        plan = self.plan(Policy("last"), due_at=at("2026-03-10T09:00"))
        assert plan == Plan((at("2026-03-10T12:00"),), at("2026-03-10T12:05"))

    def test_after_three_hours_all_enqueues_each(self) -> None:
        plan = self.plan(Policy("all"), due_at=at("2026-03-10T09:00"))
        assert len(plan.slots) == 37
        assert (plan.slots[0], plan.slots[-1]) == (at("2026-03-10T09:00"), at("2026-03-10T12:00"))
        assert plan.next_at == at("2026-03-10T12:05")

    def test_all_keeps_to_its_window(self) -> None:
        plan = self.plan(Policy("all", timedelta(minutes=11)), due_at=at("2026-03-10T09:00"))
        assert plan.slots == (at("2026-03-10T11:55"), at("2026-03-10T12:00"))

    def test_last_keeps_to_its_window(self) -> None:
        plan = self.plan(Policy("last", 2 * HOUR), due_at=NOW - 24 * HOUR, cron="0 3 * * *")
        assert plan == Plan((), at("2026-03-11T03:00"))

    def test_many_go_in_batches(self) -> None:
        first = self.plan(Policy("all"), due_at=at("2026-03-10T09:00"), limit=30)
        assert (len(first.slots), first.next_at) == (30, at("2026-03-10T11:30"))
        second = self.plan(Policy("all"), due_at=at("2026-03-10T11:30"), limit=30)
        assert (len(second.slots), second.next_at) == (7, at("2026-03-10T12:05"))

    def test_all_without_overlap_is_the_last(self) -> None:
        plan = self.plan(Policy("all", overlap="skip"), due_at=at("2026-03-10T09:00"))
        assert plan.slots == (at("2026-03-10T12:00"),)

    def test_the_last_of_very_many_is_found_soon(self) -> None:
        began = time.process_time()
        plan = self.plan(Policy("last", timedelta(days=99)), due_at=NOW - timedelta(days=90), cron="* * * * * *")
        assert time.process_time() - began < 0.5
        assert plan.slots == (NOW,)

    def test_a_clock_that_was_put_back_enqueues_nothing_and_the_time_stays(self) -> None:
        due_at = NOW + HOUR
        plan = self.plan(Policy("all"), due_at=due_at)
        assert plan.slots == ()
        assert plan.next_at is not None
        assert plan.next_at > due_at

    def test_the_end_of_python_s_time_is_a_problem(self) -> None:
        rule = Rule(every=timedelta(days=36_000), start_at=datetime(9950, 1, 1, tzinfo=UTC))
        plan = plan_due(rule, Policy(), now=NOW, due_at=datetime(9950, 1, 1, tzinfo=UTC), limit=9)
        assert "cannot be worked out" in plan.problem


def report(kind: str = "", *, day: int = 0) -> None:
    pass


class TestInCode:
    def declared(self, **options: Any) -> list[dict[str, Any]]:
        return [one._asdict() for one in task(**options)(report).declared("Asia/Tokyo")]

    def test_a_text_is_a_cron_in_the_project_s_zone(self) -> None:
        (one,) = self.declared(schedule="*/5 * * * *")
        assert (one["name"], one["task"]) == ("tests.test_schedules.report",) * 2
        assert (one["cron"], one["every_seconds"], one["time_zone"]) == ("*/5 * * * *", None, "Asia/Tokyo")
        assert (one["catch_up"], one["catch_up_window_seconds"], one["overlap"]) == ("last", 86_400.0, "allow")

    def test_several_with_arguments(self) -> None:
        cron = Cron("0 3 * * *", tz="Europe/Paris", args=["full"], queue="slow", overlap="skip", start=NOW)
        first, second, third = self.declared(
            schedule=[cron, Every(minutes=5, kwargs={"day": 1}, name="mine", priority=-3)], every=timedelta(hours=2)
        )
        assert (first["time_zone"], first["args"], first["queue"]) == ("Europe/Paris", '["full"]', "slow")
        assert (first["overlap"], first["start_at"]) == ("skip", NOW.isoformat())
        assert (second["name"], second["every_seconds"], second["kwargs"]) == ("mine", 300.0, '{"day":1}')
        assert (second["priority"], third["every_seconds"]) == (-3, 7200.0)
        assert third["name"] == "tests.test_schedules.report#3"

    def test_a_queue_by_a_function_is_asked_with_the_arguments(self) -> None:
        (one,) = self.declared(schedule=Cron("@daily", args=["mail"]), queue=lambda kind, **_: f"q-{kind}")
        assert one["queue"] == "q-mail"

    def test_a_queue_function_that_fails_leaves_it_to_the_task(self) -> None:
        (one,) = self.declared(schedule="@daily", queue=lambda: 1 // 0)
        assert one["queue"] is None

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"schedule": "61 * * * *"}, "is no cron expression"),
            ({"schedule": 5}, "schedule must be a cron expression"),
            ({"schedule": ["* * * * *"]}, "a list of these two"),
            ({"schedule": Cron("* * * * *", tz="Mars/Olympus")}, "no time zone 'Mars/Olympus'"),
            ({"schedule": Cron(5)}, "must be texts"),
            ({"schedule": Cron("@daily", args=[1, 2])}, "cannot be called with these arguments"),
            ({"schedule": Cron("@daily", kwargs={"day": {1}})}, "pass a sorted list"),
            ({"schedule": Cron("@daily", queue="")}, "queue must be"),
            ({"schedule": Cron("@daily", priority=500)}, "priority must be"),
            ({"schedule": Cron("@daily", catch_up="some")}, "catch_up must be"),
            ({"schedule": Cron("@daily", overlap="some")}, "overlap must be"),
            ({"schedule": Cron("@daily", catch_up_window=5)}, "catch_up_window must be"),
            ({"schedule": Cron("@daily", start=datetime(2026, 1, 1))}, "aware"),
            ({"schedule": Cron("@daily", name="")}, "the name of a schedule"),
            ({"schedule": [Cron("@daily", name="x"), Every(hours=1, name="x")]}, "two schedules are called 'x'"),
            ({"schedule": Every(seconds=0.5)}, "from 1 second"),
            ({"schedule": Every(days=1e300)}, "is no interval"),
            ({"every": 5}, "every must be a timedelta"),
            ({"every": timedelta(0)}, "from 1 second"),
        ],
    )
    def test_nonsense_is_refused_where_it_is_written(self, options: dict[str, Any], reason: str) -> None:
        with pytest.raises(InvalidTask, match=reason):
            task(**options)(report)

    def test_on_start_needs_no_arguments(self) -> None:
        assert task(on_start=True)(report).on_start

        with pytest.raises(InvalidTask, match="without arguments on_start, but missing a required argument: 'x'"):
            task(on_start=True)(needs_one)


def needs_one(x: int) -> None:
    pass
