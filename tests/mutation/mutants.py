"""The guards, one mutant each: what is taken out of which file, and the tests that must notice.

A text stands once in its file; keep it short. Not here, because it changes nothing that can be seen: MATERIALIZED where
rows are locked (PostgreSQL never inlines such an expression), and ``status = 'RUNNING'`` beside a lease that must fit
(a constraint of the table says so). Nor what is the second line behind another guard: that the dispatcher kills the
executors of a frozen zygote itself (the kernel does when it is killed), that an outcome of a lost lease is not even
sent (its token does not fit), and that no executor is started before there is a lease (the fence lets no body begin).
"""

from pathlib import Path
from typing import NamedTuple

from .sqlite_mutants import SQLITE_MUTANTS

STATEMENTS = ("django_dispatch/store/statements.py", "django_dispatch/store/housekeeping.py")
BULK = "django_dispatch/store/postgres_bulk.py"
ENQUEUE = "django_dispatch/store/postgres_enqueue.py"
LEASE = "django_dispatch/dispatcher/lease.py"
FENCE = "django_dispatch/executors/fence.py"
ZYGOTE = "django_dispatch/executors/zygote.py"
CLAIMS = "django_dispatch/dispatcher/claims.py"
SENDER = "django_dispatch/dispatcher/sender.py"
ROOM = "django_dispatch/dispatcher/room.py"
BUSY = "django_dispatch/dispatcher/busy.py"
EARS = "django_dispatch/dispatcher/ears.py"
SERVICE = "django_dispatch/dispatcher/service.py"
SYNC = "django_dispatch/executors/sync.py"
LOOP = "django_dispatch/executors/loop.py"
PROCESS = "django_dispatch/dispatcher/process.py"
CHILDREN = "django_dispatch/dispatcher/children.py"
HOUSEKEEPING = "django_dispatch/dispatcher/housekeeping.py"
AGENDA = "django_dispatch/dispatcher/agenda.py"
LISTENING = "django_dispatch/wakeups/pg_notify.py"
POSTGRES_AGENDA = "django_dispatch/store/postgres_agenda.py"
POOL = "django_dispatch/dispatcher/pool.py"
QUARANTINE = "django_dispatch/dispatcher/quarantine.py"
ATOMIC = "django_dispatch/store/postgres_atomic.py"
EXCHANGES = "django_dispatch/store/exchange.py"
SESSIONS = "django_dispatch/store/session.py"
WALKS = "django_dispatch/store/walks.py"
QUEUES = "django_dispatch/dispatcher/queues.py"
UNIQUE = "django_dispatch/store/postgres_unique.py"
ADMISSION = "django_dispatch/dispatcher/admission.py"
LIMITS = "django_dispatch/migrations/0007_limits.py"
TURNS = "django_dispatch/migrations/0009_fair_key.py"
WAITERS = "django_dispatch/migrations/0010_waiters.py"
WAITING = "django_dispatch/dispatcher/waiting.py"
SENDING = "django_dispatch/wakeups/sending.py"
SCHEDULES = "django_dispatch/store/postgres_schedules.py"
RULES = "django_dispatch/schedules.py"


class Mutant(NamedTuple):
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def is_quick(self) -> bool:
        """Whether its tests start no dispatcher, fill no large table, and are over soon."""
        return not any(slow in test for test in self.tests for slow in ("/faults/", "any_order", "plans"))

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.file}: {old!r} -> {new!r}"


def _store(module: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/store/test_{module}.py::{name}" for name in names) or (f"tests/store/test_{module}.py",)


_RECLAIMS = _store("reclaims")
_CLAIMS = _store("claims")
_SETTLEMENTS = _store("settlements")
_LEASES = _store("leases")
_HOUSEKEEPING = _store("housekeeping")
_CLOCK = _store("postgres_clock")
_AT_ONCE = _store("postgres_races", "TestClaimsAtTheSameTime")
_AGAINST = _store("postgres_races", "TestReclaimAgainstTheDispatcherItself")
_SWEEPS = _store("postgres_races", "TestSweepsAtTheSameTime")
_HELD = _store("postgres_races", "TestUnderALongTransaction")
_ADMIT = _store("admission")
_FAIR = _store("fairness")
_OLD_SESSION = _store("postgres_fairness", "test_a_caller_whose_session_is_as_old_reads_one_row_for_a_turn")
_TOGETHER = _store("postgres_admission")
_UNIQUE_KEYS = _store("unique_keys")
_DUPLICATES = ("tests/test_duplicates.py",)
_LIMITED = "tests/faults/test_limited_runs.py::"
_BUSY = _store("settlements", "test_a_run_that_a_transaction_holds_is_busy_and_the_rest_is_written_and_claimed")
_PROGRESS = _store("settlements", "test_progress_is_stored_only_for_the_claims_that_the_lease_holds")
_PLANS = _store("postgres_plans")
_ORDER = _store("postgres_limit", "test_sweeps_take_the_longest_due_without_an_index_that_says_so")
_ANY_ORDER = _store("any_order")
_IDLE = _store("postgres_races", "test_an_idle_look_writes_nothing")
_PAUSES = _store("queues", "TestPause")
_AGES = _store("queues", "TestAging")
_QUEUES = "tests/faults/test_queues.py::"
_UNREACHABLE = ("tests/test_broadcast.py",)
_BROADCASTS = ("tests/faults/test_broadcasts.py", *_UNREACHABLE)
_PRUNES = _store("pruning")
_IDLE_PAUSED = _store("queues", "test_a_look_at_a_paused_queue_writes_nothing")
_SCHEDULES = _store("schedules")
_SCHEDULED_LIMITS = "tests/faults/test_scheduled_limits.py::"
_MAKES_ROOM = (_SCHEDULED_LIMITS + "test_what_ends_in_its_own_transaction_makes_room_at_once_and_stays_unique",)
_FIRE_LIMITED = _store("scheduled_limits")
_DUE_SCHEDULES = _store("schedules", "TestDue")
_FIRE = _store("schedules", "TestFire")
_DECLARES = _store("schedules", "TestDeclare")
_RULES = ("tests/test_schedules.py",)
_STEERING = ("tests/test_steering.py",)
_WAITING = _store("waiting")
_MARKS = _store("postgres_waiting")
_WHO_NOTIFIES = ("tests/test_idle_wakeups.py",)
_NOTIFIES_ALWAYS = (*_WHO_NOTIFIES, "tests/test_migrations.py::TestPlainSql")
_IDLE_WAKEUPS = "tests/faults/test_idle_wakeups.py::"
_MISSED = (_IDLE_WAKEUPS + "test_a_run_that_was_written_before_we_waited_and_committed_after_is_found",)
_KEPT = (_IDLE_WAKEUPS + "test_a_run_that_was_kept_from_notifying_by_one_that_did_not_see_us_wait_is_found",)
_LITTLE_TO_DO = (_IDLE_WAKEUPS + "test_a_dispatcher_that_has_little_to_do_writes_nothing_and_is_told_of_each_run",)
_OFF = (_IDLE_WAKEUPS + "test_off_means_that_nobody_is_told_and_polls_are_not_far_apart",)
_SAID_AGAIN = (_IDLE_WAKEUPS + "test_what_was_said_is_said_again_after_trouble",)
_FENCE_TESTS = ("tests/test_fence.py",)
_KEEPER = ("tests/test_lease_keeper.py",)
_LOST = "tests/faults/test_lost_leases.py::"
_GROUND = (_LOST + "test_a_lost_lease_is_followed_by_another_one_only_when_its_bodies_are_dead",)
_FROZEN = (_LOST + "test_the_bodies_of_a_frozen_dispatcher_are_dead_before_its_lease_expires",)
_FREEZES = "tests/faults/test_freezes.py::"
_OVERDUE = (_FREEZES + "test_bodies_under_a_frozen_zygote_are_dead_before_the_lease_expires",)
_STILL = (_FREEZES + "test_a_frozen_zygote_is_replaced",)
_FAMILY = (
    "tests/faults/test_families.py",
    "tests/faults/test_dead_dispatchers.py",
    "tests/faults/test_left_running.py",
)
_FAMILIES = "tests/faults/test_families.py::"
_ZYGOTE_DIES = (_FAMILIES + "test_executors_die_with_their_zygote_whatever_the_dispatcher_does",)
_DISPATCHER_DIES = (_FAMILIES + "test_a_zygote_that_still_imports_the_project_dies_with_its_dispatcher",)
_DEAD = "tests/faults/test_dead_dispatchers.py::"
_COMPARING = ("tests/test_claims_loop.py",)
_BESIDE = ("tests/test_claims_statements.py",)
_ALARM = ("tests/store/test_postgres_sessions.py",)
_ROOM = ("tests/test_dispatcher_parts.py::test_what_is_asked_for_may_all_be_of_one_lane",)
_KNOWN = ("tests/faults/test_reconciling.py",)
_ANSWERS = ("tests/faults/test_claims.py::test_a_claim_whose_reply_was_lost_is_released",)
_LATE_CLAIM = ("tests/faults/test_claims.py::test_a_claim_that_comes_late_to_a_paused_dispatcher_is_released",)
_FURTHER_ON = ("tests/store/test_walks.py", "tests/store/test_postgres_walks.py")
_REST = (
    "tests/test_claims_loop.py::test_what_a_claim_left_out_is_looked_at_when_it_is_time_and_until_then_nothing_is_over",
)
_LEFT_OUT = ("tests/test_claims_loop.py::test_who_has_left_something_out_is_not_idle",)
_HOLDER = ("tests/faults/test_transactions.py::test_a_transaction_that_holds_a_running_run_holds_up_nothing_else",)
_TAKEN = (_LOST + "test_a_body_whose_run_was_taken_away_is_stopped_after_a_reconnect",)
_QUARANTINE = ("tests/faults/test_quarantine.py",)
_TAKEN_AWAY = ("tests/faults/test_atomic.py::test_a_body_whose_run_was_taken_away_leaves_nothing",)
_EXIT_CODE = ("tests/faults/test_outages.py::test_the_exit_code_tells_of_runs_that_a_lost_lease_has_left",)
_SESSION = (_DEAD + "test_a_terminated_session_costs_no_run",)
_TROUBLE = (
    *_ANSWERS,
    _DEAD + "test_a_terminated_session_costs_no_run",
)

_LIVE = "WHERE id = %(lease)s AND expires_at > clock_timestamp() AND %(limit)s > 0"
_EXPIRED = "WHERE expires_at < clock_timestamp() - %(grace)s * interval '1 second' OR id = ANY(%(dead)s::uuid[])"
_OURS = "r.id = s.id AND r.epoch = s.epoch AND r.lease_id IS NOT DISTINCT FROM %(lease)s AND r.status"
_NO_EPOCH = _OURS.replace("AND r.epoch = s.epoch ", "")
_NO_LEASE = _OURS.replace("AND r.lease_id IS NOT DISTINCT FROM %(lease)s ", "")
_SETTLED = "SELECT ctid FROM {RUN} AS r WHERE {_OURS} FOR NO KEY UPDATE SKIP LOCKED"
_REPORTED = (
    "AS s(id bigint, epoch int, progress jsonb)\n  JOIN {RUN} AS r ON {_OURS} FOR NO KEY UPDATE OF r SKIP LOCKED"
)
_LOST_RUNS = "ON r.lease_id = expired.id\n  FOR NO KEY UPDATE OF r SKIP LOCKED"
_DUE = "WHERE status = 'SCHEDULED' AND run_after <= (SELECT now FROM clock)"
_IN_TIME = "(expires_at IS NULL OR attempt > 0 OR expires_at > clock_timestamp())"
_LATE = (
    "WHERE expires_at <= (SELECT now FROM clock) AND attempt = 0 AND status IN ('SCHEDULED', 'READY', 'BLOCKED')\n"
    "  ORDER"
)
_OLD = "WHERE finished_at < (SELECT clock_timestamp() - %(age)s * interval '1 second')"

_OF_STATEMENTS = (
    # the wait for wakeups
    ("  DELETE FROM {WAITER} USING surrendered WHERE lease_id = surrendered.id\n",
     "  DELETE FROM {WAITER} USING surrendered WHERE false\n", _WAITING),
    ("w.lease_id = ANY(ARRAY(SELECT id FROM expired)) OR", "", _WAITING),
    (" OR NOT EXISTS (SELECT FROM {LEASE} AS l WHERE l.id = w.lease_id)", "", _WAITING),
    ("l.id = %(id)s AND l.expires_at > clock_timestamp()", "l.id = %(id)s", _WAITING),
    ("pg_current_xact_id()::text::bigint", "pg_snapshot_xmax(pg_current_snapshot())::text::bigint", _MARKS),
    ("pg_snapshot_xmin(pg_current_snapshot())::text::bigint >= %(mark)s",
     "pg_snapshot_xmax(pg_current_snapshot())::text::bigint >= %(mark)s", _MARKS),
    # renew and surrender
    ("WHERE id = %(id)s AND expires_at > clock_timestamp()", "WHERE id = %(id)s", _LEASES),
    ("WHERE id = %(id)s AND expires_at > clock_timestamp()", "WHERE expires_at > clock_timestamp()", _LEASES),
    ("WHERE id = %(id)s AND expires_at > clock_timestamp()", "WHERE id = %(id)s AND expires_at > now()", _CLOCK),
    ("WHERE id = %(id)s AND NOT EXISTS", "WHERE id = %(id)s AND true OR NOT EXISTS", _LEASES),
    ("WHERE id = %(id)s AND NOT EXISTS", "WHERE NOT EXISTS", _LEASES),
    # claim
    (_LIVE, "WHERE id = %(lease)s AND %(limit)s > 0", _CLAIMS),
    (_LIVE, "WHERE id = %(lease)s AND expires_at > now() AND %(limit)s > 0", _CLOCK),
    (_LIVE, "WHERE expires_at > clock_timestamp() AND %(limit)s > 0", _CLAIMS),
    ("FOR KEY SHARE\n), picked", "), picked", _AGAINST),
    ("FOR KEY SHARE\n), picked", "FOR NO KEY UPDATE\n), picked", _AT_ONCE),
    ("AND EXISTS (\n    SELECT FROM {{queues}}", "AND EXISTS (\n    SELECT UNION ALL SELECT FROM {{queues}}", _IDLE),
    (
        "WHERE status = 'READY' AND queue = q.name {{in_part}} AND task",
        "WHERE queue = q.name {{in_part}} AND task",
        _CLAIMS,
    ),
    ("AND queue = q.name {{in_part}} AND task", "{{in_part}} AND task", _CLAIMS),
    (" AND task <> ALL(%(excluded)s::text[])", "", _CLAIMS),
    ("{IN_LINE} LIMIT 10000", "ORDER BY {PLACE} LIMIT 10000", _CLAIMS),
    ("{IN_LINE} LIMIT 10000", "ORDER BY priority DESC, id DESC LIMIT 10000", _CLAIMS),
    ("{IN_LINE} LIMIT 10000", "ORDER BY priority DESC, id LIMIT 10000", _FAIR),
    ("LIMIT 10000 FOR NO KEY UPDATE SKIP LOCKED", "LIMIT 10000 FOR NO KEY UPDATE", _AT_ONCE),
    ("LIMIT 10000 FOR NO KEY UPDATE SKIP LOCKED", "LIMIT 10000", _AT_ONCE),
    ("ALL({PAUSED})\n  LIMIT %(limit)s", "ALL({PAUSED})", _CLAIMS),
    ("epoch = r.epoch + 1", "epoch = r.epoch", _CLAIMS),
    ("attempt = least(r.attempt + 1, 32767)", "attempt = r.attempt", _CLAIMS),
    ("attempt = least(r.attempt + 1, 32767)", "attempt = r.attempt + 1", _CLAIMS),
    (_IN_TIME, "true", _CLAIMS),
    (_IN_TIME, _IN_TIME.replace("attempt > 0 OR ", ""), _CLAIMS),
    (_IN_TIME, _IN_TIME.replace("clock_timestamp", "now"), _CLOCK),
    (" AND {PLACE} >= q.start", "", _FURTHER_ON),
    ("AND priority BETWEEN q.low AND q.high ", "", _FURTHER_ON),
    ("THEN 'fail' ELSE r.on_lost END", "THEN r.on_lost ELSE r.on_lost END", _CLAIMS),
    ("\n  WHERE q.name <> ALL({PAUSED})\n  LIMIT", "\n  LIMIT", _PAUSES),
    ("AS one\n    WHERE q.name <> ALL({PAUSED}))", "AS one)", _IDLE_PAUSED),
    ("WHERE paused_until IS NULL OR paused_until > clock_timestamp()", "WHERE paused_until IS NULL", _PAUSES),
    ("WHERE paused_until IS NULL OR paused_until > clock_timestamp()", "WHERE true", _PAUSES),
    ("WHERE paused_until IS NULL OR paused_until > clock_timestamp()", "WHERE paused_until > clock_timestamp()",
     _PAUSES),
    (" AND queue <> ALL({PAUSED})\n\"\"\"", "\n\"\"\"", _PAUSES),
    # age
    ("AND priority < level.priority\n", "\n", _AGES),
    ("WHERE level.priority < level.top\n    AND first", "WHERE first", _AGES),
    ("AND first.due_at < (SELECT clock_timestamp() - %(age)s * interval '1 second')", "", _AGES),
    ("ORDER BY {PLACE} LIMIT %(limit)s) AS first", "ORDER BY {PLACE}) AS first", _AGES),
    ("turn = CASE WHEN r.fair_key IS NOT NULL THEN", "turn = CASE WHEN r.fair_key IS NULL THEN", _FAIR),
    ("THEN true END\n  FOR NO KEY UPDATE SKIP LOCKED", "THEN true END\n  FOR NO KEY UPDATE", _AGES),
    (" AND CASE WHEN status = 'READY' THEN true END", "", _SWEEPS),
    # turns of runs that come back
    ("WHEN r.turn IS NOT NULL AND {_WORD} = 'READY' AND", "WHEN false AND", _FAIR),
    (" AND s.started IS DISTINCT FROM 0\n", "\n", _FAIR),
    ("WHEN r.turn IS NOT NULL AND {_LOST} = 'READY'", "WHEN false", _FAIR),
    ("turn = {_ITS_TURN}, ready_at", "ready_at", _FAIR),
    ('r.queue)", "r.priority", "r.fair_key")', 'r.queue)", "r.priority")', _FAIR),
    ("WHEN r.places > 0 THEN {next_turn(", "WHEN false THEN {next_turn(", _FAIR),
    ("WHEN r.on_duplicate NOT IN ('serial', 'queue_one')\n", "WHEN true\n", _FAIR),
    # finish
    (_OURS, _NO_EPOCH, _SETTLEMENTS),
    (_OURS, _NO_LEASE, _SETTLEMENTS),
    (_SETTLED, _SETTLED.replace(" SKIP LOCKED", ""), _BUSY),
    (_SETTLED, _SETTLED.replace(" FOR NO KEY UPDATE SKIP LOCKED", ""), _BUSY),
    ("WHEN EXISTS (SELECT FROM {RUN} AS r WHERE {_OURS}) THEN 'busy' END", "ELSE 'busy' END", _BUSY),
    ("WHEN EXISTS (SELECT FROM {RUN} AS r WHERE {_OURS}) THEN 'busy' END", "END", _BUSY),
    ("r.cancel_requested_at IS NOT NULL AND s.status IN", "false AND s.status IN", _SETTLEMENTS),
    ("r.cancel_requested_at IS NOT NULL AND s.status IN ('READY', 'SCHEDULED')", "r.cancel_requested_at IS NOT NULL",
     _SETTLEMENTS),
    ("r.attempt - 1 + coalesce(s.started, 1)", "r.attempt", _SETTLEMENTS),
    ("failures = r.failures + coalesce(s.failed, 0)", "failures = r.failures", _SETTLEMENTS),
    ("r.interruptions + coalesce(s.interrupted, 0)", "r.interruptions", _SETTLEMENTS),
    ("WHERE id NOT IN (SELECT id FROM finished WHERE is_as_said)", "WHERE false", _SETTLEMENTS),
    ("WHERE id NOT IN (SELECT id FROM finished WHERE is_as_said)", "WHERE id NOT IN (SELECT id FROM finished)",
     _SETTLEMENTS),
    ('HELD = f"SELECT id, epoch FROM {RUN} WHERE lease_id = %(lease)s"',
     'HELD = f"SELECT id, epoch FROM {RUN} WHERE lease_id IS NOT NULL"', _SETTLEMENTS),
    ("WHERE lease_id = %(lease)s AND cancel_requested_at", "WHERE cancel_requested_at", _SETTLEMENTS),
    (" AND cancel_requested_at IS NOT NULL\"", "\"", _SETTLEMENTS),
    (_REPORTED, _REPORTED.replace("{_OURS}", "r.id = s.id AND r.lease_id = %(lease)s"), _PROGRESS),
    (_REPORTED, _REPORTED.replace("{_OURS}", "r.id = s.id AND r.epoch = s.epoch"), _PROGRESS),
    (_REPORTED, _REPORTED.replace(" SKIP LOCKED", ""), _HELD),
    ("queue = coalesce(s.queue, r.queue)", "queue = r.queue", _SETTLEMENTS),
    ("priority = coalesce(s.priority, r.priority)", "priority = r.priority", _SETTLEMENTS),
    ("WHEN jsonb_typeof(r.errors) <> 'array' THEN jsonb_build_array(r.errors)", "WHEN false THEN r.errors",
     _SETTLEMENTS),
    ("pg_column_size(r.errors) > 250000", "false", _SETTLEMENTS),
    ("jsonb_array_length(r.errors) >= 100", "false", _SETTLEMENTS),
    # reclaim
    (_EXPIRED, "WHERE true OR id = ANY(%(dead)s::uuid[])", _RECLAIMS),
    (_EXPIRED, "WHERE expires_at < clock_timestamp() OR id = ANY(%(dead)s::uuid[])", _RECLAIMS),
    (_EXPIRED, "WHERE expires_at < clock_timestamp() - %(grace)s * interval '1 second'", _RECLAIMS),
    (_EXPIRED, _EXPIRED.replace("clock_timestamp", "now"), _CLOCK),
    ("ORDER BY expires_at LIMIT 20", "LIMIT 20", _RECLAIMS),
    ("ORDER BY expires_at LIMIT 20", "ORDER BY expires_at", _RECLAIMS),
    ("LIMIT 20 FOR UPDATE SKIP LOCKED", "LIMIT 20 FOR UPDATE", _AGAINST + _SWEEPS),
    ("LIMIT 20 FOR UPDATE SKIP LOCKED", "LIMIT 20", _AGAINST + _SWEEPS),
    (_LOST_RUNS, _LOST_RUNS.replace(" SKIP LOCKED", ""), _AGAINST),
    (_LOST_RUNS, "ON r.lease_id = expired.id", _AGAINST),
    ("DELETE FROM {LEASE} USING expired WHERE {LEASE}.id = expired.id",
     "DELETE FROM {LEASE} USING expired WHERE {LEASE}.id = expired.id AND false", _RECLAIMS),
    ("AND NOT EXISTS (SELECT FROM {LEASE} AS l WHERE l.id = r.lease_id)", "", _RECLAIMS),
    ("LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED\n", "LIMIT 1000 FOR NO KEY UPDATE\n", _SWEEPS),
    (" AND r.lease_id IS NOT DISTINCT FROM lost.lease_id", "", _SWEEPS),
    ("WHEN r.cancel_requested_at IS NOT NULL THEN 'CANCELLED'", "WHEN false THEN 'CANCELLED'", _RECLAIMS),
    ("r.on_lost = 'fail' OR ", "", _RECLAIMS),
    (" OR r.interruptions + 1 >= %(max_interruptions)s", "", _RECLAIMS),
    ("r.interruptions + 1 >= %(max_interruptions)s", "r.interruptions >= %(max_interruptions)s", _RECLAIMS),
    ("WHEN r.interruptions = 0 THEN 'READY' ELSE 'SCHEDULED' END", "ELSE 'READY' END", _RECLAIMS),
    ("lease_id = NULL, interruptions = r.interruptions + 1", "lease_id = NULL, interruptions = r.interruptions",
     _RECLAIMS),
    (" AND NOT EXISTS (SELECT FROM {LEASE} AS l WHERE 'lease:' || l.id = hop.queue)", "", _BROADCASTS),
    ("WHERE starts_with(queue, 'lease:') AND NOT", "WHERE NOT", _UNREACHABLE),
    ("LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED) AS one", "LIMIT 1000 FOR NO KEY UPDATE) AS one", _UNREACHABLE),
    # promote, prune and the rest
    (_DUE, _DUE.replace("status = 'SCHEDULED' AND ", ""), _PLANS),  # only they have a run_after; for the index
    (_DUE, "WHERE status = 'SCHEDULED'", _HOUSEKEEPING),
    (_DUE, _DUE.replace("(SELECT now FROM clock)", "clock_timestamp()"), _PLANS),
    ("(SELECT clock_timestamp() AS now),\ndue AS", "(SELECT now() AS now),\ndue AS", _CLOCK),
    ("ORDER BY run_after LIMIT %(limit)s FOR", "LIMIT %(limit)s FOR", _ORDER),
    ("ORDER BY run_after LIMIT %(limit)s FOR", "ORDER BY run_after FOR", _HOUSEKEEPING),
    ("run_after LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED", "run_after LIMIT %(limit)s FOR NO KEY UPDATE", _SWEEPS),
    (_LATE, _LATE.replace("expires_at <= (SELECT now FROM clock)", "expires_at IS NOT NULL"), _HOUSEKEEPING),
    (_LATE, _LATE.replace(" AND attempt = 0", ""), _HOUSEKEEPING),
    (_LATE, _LATE.replace(" AND status IN ('SCHEDULED', 'READY', 'BLOCKED')", ""), _HOUSEKEEPING),
    (_LATE, _LATE.replace("(SELECT now FROM clock)", "clock_timestamp()"), _PLANS),
    ("(SELECT clock_timestamp() AS now),\nlate AS", "(SELECT now() AS now),\nlate AS", _CLOCK),
    ("ORDER BY expires_at LIMIT %(limit)s FOR", "ORDER BY expires_at FOR", _HOUSEKEEPING),
    ("ORDER BY expires_at LIMIT %(limit)s FOR", "LIMIT %(limit)s FOR", _ORDER),
    ("expires_at LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED", "expires_at LIMIT %(limit)s FOR NO KEY UPDATE",
     _SWEEPS),
    (_OLD, "WHERE finished_at IS NOT NULL", _HOUSEKEEPING),
    ("AND status = %(status)s AND retention IS NULL AND", "AND status = %(status)s AND", _PRUNES),
    ("\n    AND {_GOES_AT} < (SELECT clock_timestamp() AT TIME ZONE 'UTC')", "", _PRUNES),
    ("ORDER BY {_GOES_AT} LIMIT %(limit)s", "LIMIT %(limit)s", _ORDER),
    ("ORDER BY {_GOES_AT} LIMIT %(limit)s FOR UPDATE SKIP LOCKED", "ORDER BY {_GOES_AT} LIMIT %(limit)s FOR UPDATE",
     _PRUNES),
    (_OLD, _OLD.replace("clock_timestamp()", "now()"), _CLOCK),
    (_OLD, _OLD.replace("(SELECT ", "").replace("')", "'"), _PLANS),
    ("\n    AND status = %(status)s AND retention", "\n    AND retention", _HOUSEKEEPING),
    ("ORDER BY finished_at LIMIT %(limit)s", "LIMIT %(limit)s", _ORDER),
    ("ORDER BY finished_at LIMIT %(limit)s", "ORDER BY finished_at", _HOUSEKEEPING),
    ("finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED", "finished_at LIMIT %(limit)s FOR UPDATE", _SWEEPS),
    # limits and unique keys
    (" AND r.on_duplicate NOT IN ('queue_one', 'replace')", "", _UNIQUE_KEYS),
    ("{_WORD} = 'SCHEDULED' THEN {_KEPT_PLACES} ELSE r.places END", "false THEN 0 ELSE r.places END", _ADMIT),
    ("{_LOST} = 'SCHEDULED' THEN {_KEPT_PLACES} ELSE r.places END", "false THEN 0 ELSE r.places END", _ADMIT),
    ("r.on_duplicate IN ('serial', 'queue_one') THEN 1 ELSE 0 END", "false THEN 1 ELSE 0 END", _ADMIT),
    ("r.concurrency_key IS NOT NULL AND r.places = 0 THEN", "r.concurrency_key IS NOT NULL THEN", _ADMIT),
    (" OR {_WORD} <> 'CANCELLED' AND {_IS_UNIQUE_STILL}", "", _UNIQUE_KEYS),
    ("{_WORD} <> 'CANCELLED' AND {_IS_UNIQUE_STILL}", "{_IS_UNIQUE_STILL}", _UNIQUE_KEYS),
    (" OR {_LOST} <> 'CANCELLED' AND {_IS_UNIQUE_STILL}", "", _UNIQUE_KEYS),
    ("{_LOST} <> 'CANCELLED' AND {_IS_UNIQUE_STILL}", "{_IS_UNIQUE_STILL}", _UNIQUE_KEYS),
    ("retention IS NULL AND {_OF_TASK} AND {_IS_FORGETTABLE}", "retention IS NULL AND {_OF_TASK}", _UNIQUE_KEYS),
    ("OR status = %(status)s) AND {_OF_TASK} AND {_IS_FORGETTABLE}", "OR status = %(status)s) AND {_OF_TASK}",
     _UNIQUE_KEYS),
    ("blocked_by > %(after)s", "blocked_by <> %(after)s", _ADMIT),
    ("WHERE host = %(host)s AND id", "WHERE id", _LEASES),
    (" AND id IS DISTINCT FROM %(besides)s", "", _LEASES),
)  # fmt: skip

# The same once more, found without knowing where to look.
_IN_ANY_ORDER = (
    (_OURS, _NO_EPOCH),
    (_OURS, _NO_LEASE),
    (_SETTLED, _SETTLED.replace(" SKIP LOCKED", "")),
    (_LIVE, "WHERE id = %(lease)s AND %(limit)s > 0"),
    (_EXPIRED, "WHERE true OR id = ANY(%(dead)s::uuid[])"),
    ("WHERE status = 'READY' AND queue = q.name {{in_part}} AND task", "WHERE queue = q.name {{in_part}} AND task"),
    ("epoch = r.epoch + 1", "epoch = r.epoch"),
    ("lease_id = NULL, interruptions = r.interruptions + 1", "lease_id = NULL, interruptions = r.interruptions"),
    ("r.interruptions + coalesce(s.interrupted, 0)", "r.interruptions"),
    ("r.attempt - 1 + coalesce(s.started, 1)", "r.attempt"),
    ("attempt = least(r.attempt + 1, 32767)", "attempt = r.attempt"),
)

_OF_BULKS = (
    ('text.replace("\\\\", "\\\\\\\\")\n\n\ndef', "text\n\n\ndef", ("tests/test_enqueue.py",)),
    ("_escaped(str(value))", "str(value)", ("tests/test_enqueue.py",)),
)
_OF_ENQUEUE = (
    ("ORDER BY id FOR NO KEY UPDATE", "ORDER BY id", _STEERING + _AT_ONCE),
    ("ORDER BY id FOR NO KEY UPDATE", "ORDER BY id DESC FOR NO KEY UPDATE", _store("postgres_cancels")),
    ("t.status IN ('SCHEDULED', 'READY', 'BLOCKED')", "true", _STEERING),
    ("t.id AND t.status = 'RUNNING'", "t.id", _STEERING),
    ("COALESCE(r.cancel_requested_at, clock_timestamp())", "clock_timestamp()", _STEERING),
    ("run_after = NULL, unique_key = NULL", "run_after = NULL", _STEERING),
    (" AND status IN ('SUCCESSFUL', 'FAILED', 'CANCELLED')\nRETURNING *", "\nRETURNING *", _STEERING),
    ("CASE WHEN d.due > clock.now THEN d.due END", "d.due", ("tests/test_enqueue.py",)),
    ("FROM new ORDER BY place", "FROM new ORDER BY place DESC", ("tests/test_enqueue.py",)),
    ("SET status = 'CANCELLED', finished_at = clock_timestamp()", "SET status = 'CANCELLED', finished_at = now()",
     _CLOCK),
)  # fmt: skip

_OF_BROADCASTS = (
    ("WHERE expires_at > clock_timestamp() AND state = 'ACTIVE'", "WHERE state = 'ACTIVE'", _UNREACHABLE),
    ("WHERE expires_at > clock_timestamp() AND state = 'ACTIVE'", "WHERE expires_at > clock_timestamp()",
     _UNREACHABLE),
)  # fmt: skip

_OF_QUEUES = (
    (SERVICE, "Queues(settings.queues, settings.queue_weights)", "Queues(settings.queues)",
     (_QUEUES + "test_flooded_queues_are_served_by_weight",)),
    (CLAIMS, "        self._queues.note_claimed(run.queue for run in exchange.claimed)\n", "",
     (_QUEUES + "test_flooded_queues_are_served_by_weight",)),
    (SERVICE, "        self.queues.private = private_queue(lease_id)\n", "", _BROADCASTS[:1]),
    (SERVICE, "aging_seconds=self.settings.priority_aging_seconds", "aging_seconds=None",
     (_QUEUES + "test_a_run_of_low_priority_has_its_turn_in_an_endless_flow_of_high_ones",)),
    (HOUSEKEEPING, "        await self._in_batches(partial(store.prune_own, limit=PRUNE_LIMIT))\n", "",
     (_QUEUES + "test_a_dispatcher_deletes_runs_past_the_retention_of_their_own",)),
    (HOUSEKEEPING, "await self._store.call(self._store.store.cancel_unreachable)", "0", _BROADCASTS[:1]),
)  # fmt: skip
_OF_THE_ORDER = (
    ("        names.sort(key=self._time_of)\n", ""),
    ("+ count / weight_of(name, self._weights)", "+ count"),
    ("return max(self._now, self._times[name])", "return self._times[name]"),
    ("self._now = max(self._now, began)", "pass"),
    ("return names if self.private is None else [self.private, *names]", "return names"),
    (" or name == self.private", ""),
)

# That the schedule's row is locked is the first line; that next_at must be as it was seen, the second; the unique index
# over schedule and occurrence, the third. The trigger of the table is no mutant: a tree's database is made once.
_OF_SCHEDULES = (
    ("s.enabled AND s.task = ANY", "s.task = ANY", _DUE_SCHEDULES),
    ("AND s.task = ANY(%(tasks)s::text[])\n", "\n", _DUE_SCHEDULES),
    ("AND (s.source <> 'code' OR s.declared_at > clock.now - interval '{DECLARED_SECONDS} seconds')\"\"\"", "\"\"\"",
     _DUE_SCHEDULES),
    ("AND (s.planned_revision <> s.revision OR s.next_at <= clock.now)\n  ORDER", "ORDER", _DUE_SCHEDULES),
    ("(s.planned_revision <> s.revision OR s.next_at <= clock.now)\n  ORDER", "s.next_at <= clock.now\n  ORDER",
     _DUE_SCHEDULES),
    ("ORDER BY s.next_at NULLS FIRST, s.id LIMIT", "ORDER BY s.id LIMIT", _DUE_SCHEDULES),
    ("s.next_at > clock.now AND isfinite(s.next_at)", "s.next_at IS NOT NULL", _SCHEDULES),
    ("\n    AND s.next_at IS NOT DISTINCT FROM f.token::timestamptz", "", _FIRE),
    (" AND s.revision = f.revision AND s.enabled", " AND s.enabled", _FIRE),
    (" AND s.revision = f.revision AND s.enabled", " AND s.revision = f.revision", _FIRE),
    ("FOR NO KEY UPDATE OF s SKIP LOCKED\n), moved", "FOR NO KEY UPDATE OF s\n), moved", _FIRE),
    ("FOR NO KEY UPDATE OF s SKIP LOCKED\n), moved", "), moved", _FIRE),
    ("(free.overlap <> 'skip' OR NOT EXISTS (", "(true OR NOT EXISTS (", _FIRE),
    ("(free.overlap <> 'skip' OR NOT EXISTS (", "(NOT EXISTS (", _FIRE),
    ("r.schedule_id = free.id AND r.schedule_id IS NOT NULL AND r.finished_at", "r.finished_at", _FIRE),
    (" AND r.finished_at IS NULL))", "))", _FIRE),
    ("AND r.scheduled_for = slot)", "AND false)", _FIRE_LIMITED),
    ("\n  ON CONFLICT DO NOTHING\n  RETURNING id, queue, schedule_id", "\n  RETURNING id, queue, schedule_id",
     _FIRE_LIMITED),
    ("ARRAY(SELECT unique_key FROM wanted", "ARRAY(SELECT unique_key FROM free", _FIRE_LIMITED),
    ("AND {GIVES_WAY}\n", "AND false\n", _FIRE_LIMITED),
    ("FROM wanted CROSS JOIN before ORDER", "FROM wanted ORDER", _FIRE_LIMITED),
    ("    AND (f.seen_args IS NULL OR (s.args, s.kwargs) = (f.seen_args::jsonb, f.seen_kwargs::jsonb))\n", "",
     _FIRE_LIMITED),
    ("queue = ANY(%(limited_queues)s::text[])", "false", _FIRE_LIMITED),
    ("UNCOMMITTED_MILLISECONDS}', true)", "UNCOMMITTED_MILLISECONDS}0000', true)", _FIRE_LIMITED),
    ("WHERE s.source = 'code'\n  FOR NO KEY UPDATE OF s SKIP LOCKED", "FOR NO KEY UPDATE OF s SKIP LOCKED", _DECLARES),
    ("WHERE s.source = 'code'\n  FOR NO KEY UPDATE OF s SKIP LOCKED",
     "WHERE s.source = 'code'\n  FOR NO KEY UPDATE OF s", _DECLARES),
    ("WHERE name = ANY(%(names)s::text[]) AND source", "WHERE source", _DECLARES),
    ("s.next_at < clock.now - interval '1 minute'", "s.next_at < clock.now", _SCHEDULES),
    (" AND s.problem = ''\n", "\n", _SCHEDULES),
)  # fmt: skip
_OF_RULES = (
    ("LONGEST_PUT_BACK_SECONDS = 3 * 3600", "LONGEST_PUT_BACK_SECONDS = 1", _RULES),
    ("for fold in (0, 1):", "for fold in (0,):", _RULES),
    ("and instant.astimezone(zone).replace(tzinfo=None) == wall", "", _RULES),
    ("else max(now, due_at)", "else now", _RULES),
    ("now if last_at is None else max(now, last_at)", "now", _RULES),
    ("else max(policy.window, PUNCTUAL)", "else policy.window", _RULES),
    ("max(due_at, now - (", "min(due_at, now - (", _RULES),
)

_OF_EXCHANGES = (
    (
        "claimed.sort(key=lambda run: (order[run.queue], -run.priority, run.place, run.id))",
        "claimed.reverse()",
        _CLAIMS,
    ),
    ("by_answer[row[2]].append", "by_answer[None].append", _BUSY),
    ("by_answer[row[2]].append", "by_answer['busy'].append", _BUSY),
    ("EXCHANGE if self._settlements else CLAIM", "CLAIM", _SETTLEMENTS),
    ("EXCHANGE_FURTHER_ON if self._settlements else CLAIM_FURTHER_ON", "CLAIM_FURTHER_ON", _FURTHER_ON),
)

_OF_WALKS = (
    ("line.tail = self._tail if is_short else FRONT", "line.tail = self._tail"),
    ("line.places.clear()", "pass"),
    ("top = priority - 1", "top = priority"),
    ("if self.is_whole or not is_short:", "if True:"),
    ("self.is_whole = self._began >= line.whole_at", "self.is_whole = line.whole_at == 0.0"),
    ("if line.is_dear and has_ended_somewhere else 0.0", "if has_ended_somewhere else 0.0"),
    ("line.not_before = now + VAIN_SECONDS", "pass"),
    ('key = tuple(sorted(wanted.get("excluded_tasks", ())))', "key = ()"),
)

_OF_LIMITS = (
    (LIMITS, "PERFORM pg_advisory_xact_lock(", "PERFORM hashtext('none') IN (", _TOGETHER),
    (LIMITS, "<> 'read committed' THEN", "= 'none' THEN", _TOGETHER),
    (LIMITS, "WHERE queue = substr(one.key, 7) AND", "WHERE false AND", _ADMIT),
    (LIMITS, "WHERE concurrency_key = one.key AND", "WHERE false AND", _ADMIT),
    (LIMITS, "concurrency_key = one.key AND places > 0 AND", "concurrency_key = one.key AND", _ADMIT),
    (LIMITS, "ORDER BY priority DESC, id LIMIT room", "ORDER BY id LIMIT room", _ADMIT),
    (LIMITS, "LIMIT room FOR NO KEY UPDATE SKIP LOCKED", "LIMIT room FOR NO KEY UPDATE", _ADMIT),
    (LIMITS, " OR id = head.id)", " OR true)", _ADMIT),
    (LIMITS, "least(amount, COALESCE(tokens_left, amount))", "COALESCE(tokens_left, amount)", _ADMIT),
    (LIMITS, "greatest(0, extract(", "(extract(", _ADMIT),
    (LIMITS, "room := least(room, floor(tokens_left));", "", _ADMIT),
    (LIMITS, "NEW.status := 'BLOCKED';", "NULL;", _ADMIT),
    (UNIQUE, "waiting = sorted(range(len(news)), key=lambda place: _keys(news[place]))",
     "waiting = list(range(len(news)))", _DUPLICATES),
    (UNIQUE, "(unique_until IS NULL OR unique_until <= clock_timestamp())", "true", _DUPLICATES),
    (UNIQUE, "OR on_duplicate = 'replace' AND", "OR", _DUPLICATES),
    (UNIQUE, ' and new.on_duplicate != "replace"', "", _DUPLICATES),
    (UNIQUE, "            run.is_duplicate = True\n", "", _DUPLICATES),
    (HOUSEKEEPING, "if freed:", "if False:", (_SCHEDULED_LIMITS + "test_places_of_what_expires_are_free_at_once",)),
    (CLAIMS, "self._tell.freed([ended.flight.run for ended in batch])",
     "self._tell.freed([e.flight.run for e in batch if e.outcome.verdict is not Verdict.COMMITTED])", _MAKES_ROOM),
    (ADMISSION, "if now >= self._sweep_at:", "if False:",
     (_LIMITED + "TestWhateverBecomesOfTheHolder::test_somebody_ends_it_by_sql",)),
)  # fmt: skip

_IDLE = ("tests/test_idle_statements.py",)
_PARTS = "tests/test_dispatcher_parts.py::test_a_step_that_"
_NEIGHBOURS = "tests/test_neighbours.py::test_who_listens_asks_when_told_and_with_each_sweep"
_OF_THE_AGENDA = (
    (AGENDA, 'housekeeping.put_off("promote", agenda.promote_seconds, longest=longest)', "pass", _IDLE),
    (AGENDA, "it.looks.polled(agenda.ready_queues)", "pass",
     ("tests/faults/test_wakeups.py::test_without_wakeups_the_poll_finds_everything",)),
    (AGENDA, "0.0 if is_any_lost else None", "None",
     ("tests/test_neighbours.py::test_the_agenda_has_reclaimed_what_anybody_lost",)),
    (AGENDA, " or bool(housekeeping.lost_leases)", "",
     ("tests/test_neighbours.py::test_the_agenda_has_reclaimed_what_anybody_lost",)),
    (HOUSEKEEPING, "if not known.issuperset(lease_ids):", "if False:", (_NEIGHBOURS,)),
    (HOUSEKEEPING, "                    if not is_failing:\n", "                    if True:\n",
     (_PARTS + "fails_is_not_put_off",)),
    (HOUSEKEEPING, "elif pause < longest:", "elif False:",
     (_PARTS + "is_under_way_is_called_again_if_the_agenda_has_something_for_it",)),
    (HOUSEKEEPING, "rest.reschedule(asyncio.get_running_loop().time() + pause)", "pass",
     (_PARTS + "rests_is_called_when_the_agenda_says_so",)),
    (ADMISSION, "if now < self._sweep_at and not self._cursor and", "if not self._cursor and",
     _store("admission", "TestTheStep::test_what_the_agenda_names_is_admitted_without_a_sweep")),
    (LISTENING, "SILENCE_FACTOR = 2.0", "SILENCE_FACTOR = 6.0",
     ("tests/faults/test_half_open.py::test_a_deaf_listening_connection_is_found_within_three_poll_intervals",)),
    (POSTGRES_AGENDA, " AND queue <> ALL({PAUSED})", "", _store("agenda")),
    (POSTGRES_AGENDA, "s.planned_revision <> s.revision OR s.next_at <= clock.now THEN 0", "false THEN 0",
     _store("agenda")),
    (POSTGRES_AGENDA, "AND attempt = 0 AND status", "AND status", _store("agenda")),
    (POSTGRES_AGENDA, "WHERE lease_id IS NOT NULL AND NOT EXISTS", "WHERE false AND NOT EXISTS", _store("agenda")),
)  # fmt: skip

_OF_TURNS = (
    ("RETURN waiting.turn + 2;", "RETURN waiting.turn;", _FAIR),
    ("IF waiting.fair_key = key THEN", "IF FOUND THEN", _FAIR),
    ("THEN waiting.turn + 1 + waiting.turn % 2", "THEN waiting.turn", _FAIR),
    ("THEN waiting.turn + 1 + waiting.turn % 2", "THEN waiting.turn + 1", _FAIR),
    ("ORDER BY turn LIMIT 1;", "ORDER BY turn DESC LIMIT 1;", _FAIR),
    ("ELSE run_id * 2 END;", "ELSE 0 END;", _FAIR),
    ("= line AND priority = level AND fair_key <= key", "= line AND fair_key <= key", _FAIR),
    ("= line AND priority = level\n", "= line\n", _FAIR),
    ("COALESCE(blocked_by, queue) = line AND priority = level\n", "priority = level\n", _FAIR),
    ("COALESCE(blocked_by, queue) = line AND priority = level AND fair_key", "priority = level AND fair_key", _FAIR),
    ("SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off ", "", _OLD_SESSION),
    ("(NEW.fair_key IS NOT NULL AND NEW.status IN ('READY', 'BLOCKED'))", "(NEW.fair_key IS NOT NULL)", _FAIR),
    ("OR NEW.on_duplicate NOT IN ('serial', 'queue_one')\n", "OR true\n", _FAIR),
    ("COALESCE(NEW.blocked_by, NEW.queue), NEW.priority", "NEW.queue, NEW.priority", _FAIR),
    ('"ORDER BY priority DESC, COALESCE(turn, id * 2) LIMIT")', '"ORDER BY priority DESC, id LIMIT")', _FAIR),
    ("WHEN r.fair_key IS NULL OR is_queue THEN", "WHEN true THEN", _FAIR),
    ("r.priority, NULL, r.id) END,", "r.priority, r.fair_key, r.id) END,", _FAIR),
)

_OF_WAITING = (
    (WAITERS, "current_setting('transaction_isolation') <> 'read committed'", "false", _WHO_NOTIFIES),
    (WAITERS, "boolean LANGUAGE plpgsql VOLATILE", "boolean LANGUAGE plpgsql STABLE", _WHO_NOTIFIES),
    (WAITERS, "OR NOT EXISTS (SELECT FROM django_dispatch_waiter)\n    OR", "OR", _NOTIFIES_ALWAYS),
    (WAITERS, "WHERE w.is_waiting AND (", "WHERE (", _WHO_NOTIFIES),
    (WAITERS, "WHEN starts_with(wanted, 'lease:')", "WHEN false", _WHO_NOTIFIES),
    (WAITERS, "'([\\\\%_])'", "'()'", _WHO_NOTIFIES),
    (WAITERS, "IF has_table_privilege(to_regclass('django_dispatch_waiter'), 'SELECT')", "IF true", _WHO_NOTIFIES),
    (WAITERS, "AND to_regclass('django_dispatch_waiter')\n         = to_regclass(quote_ident(TG_TABLE_SCHEMA)"
     " || '.django_dispatch_waiter') THEN", "THEN", _WHO_NOTIFIES),
    (WAITERS, "AND has_function_privilege('django_dispatch_is_awaited(text)', 'EXECUTE')", "", _WHO_NOTIFIES),
    (WAITING, "if has_passed:", "if True:", _MISSED),
    (WAITING, "        self._look()\n        if has_passed:", "        if has_passed:", _MISSED),
    (WAITING, "ROUNDS = 2", "ROUNDS = 1", _KEPT),
    (WAITING, "BUSY_SECONDS = 1.0", "BUSY_SECONDS = 0.0", _LITTLE_TO_DO),
    (WAITING, "self._said == (self._own_lease(), True)", "True", _OFF),
    (WAITING, "trouble.on_relief(self._say_again)", "pass", _SAID_AGAIN),
    (EARS, "self._dispatcher.housekeeping.poll_soon()\n", "self._dispatcher.claims.look()\n", _MISSED),
    (SENDING, '(settings.notify != "off" or', "(True or", _WHO_NOTIFIES),
    (SENDING, 'if conf.current().notify != "idle" or', "if", _WHO_NOTIFIES),
    (SENDING, "WHERE django_dispatch_is_awaited(%s::text)", "WHERE %s::text = ANY(ARRAY['a'])", _WHO_NOTIFIES),
    (ENQUEUE, "WHEN NOT django_dispatch_is_awaited(%s::text) THEN true", "WHEN %s::text = '' THEN true", _WHO_NOTIFIES),
)  # fmt: skip
_OF_THE_FENCE = (
    (FENCE, "return halves == _HALVES.unpack(lease) and now_ns() < deadline", "return now_ns() < deadline",
     _FENCE_TESTS),
    (FENCE, "return halves == _HALVES.unpack(lease) and now_ns() < deadline", "return halves == _HALVES.unpack(lease)",
     _FENCE_TESTS),
    (FENCE, "if version % 2 == 0 and cells[_VERSION] == version", "if True", _FENCE_TESTS),
    (FENCE, "board._write_fence((0, 0), NEVER)", "board._write_fence((0, 0), 0)", _FENCE_TESTS),
    (SYNC, "if not self._board.allows(assignment.lease)", "if False", _FENCE_TESTS),
    (LOOP, "if self._board.allows(assignment.lease)", "if True", _FENCE_TESTS),
    (LEASE, "(self._ttl_seconds - self._margin_seconds)", "self._ttl_seconds", _KEEPER),
    (LEASE, "self._extend(lease_id, began)", "self._extend(lease_id, now_ns())", _KEEPER),
    (LEASE, "if is_ours and now_ns() < self._deadline_ns", "if is_ours", _KEEPER),
    (LEASE, "if is_ours and now_ns() < self._deadline_ns", "if now_ns() < self._deadline_ns", _KEEPER),
    (LEASE, "self._board.lower_fence()", "pass", _KEEPER),
    (LEASE, "if now_ns() < self._deadline_ns:\n            self._on", "if True:\n            self._on", _KEEPER),
    (LEASE, "if now_ns() >= self._call_limit_ns", "if False", _KEEPER),
    (LEASE, "min(limit_ns, (self._deadline_ns - now) // 2)", "limit_ns", _KEEPER),
    (LEASE, "self._may_acquire = False", "self._may_acquire = True", _KEEPER),
    (SERVICE, 'await self.pool.kill_all("lease")', "await asyncio.sleep(0)", _GROUND),
    (ZYGOTE, "if self._children and now_ns() >= self._board.deadline_ns()", "if False", _FROZEN),
    (ZYGOTE, "self._enforce_deadline()\n            self._reap()", "self._reap()", _FROZEN),
    (ZYGOTE, "        die_with_parent(config[\"dispatcher_pid\"], DEATH_SIGNAL)\n", "", _DISPATCHER_DIES),
    (ZYGOTE, "            die_with_parent(parent, signal.SIGKILL)\n", "", _ZYGOTE_DIES),
    (ZYGOTE, "            self._kill_orphans()\n", "", _FAMILY),
    (ZYGOTE, "            os.setsid()", "            pass", _FAMILY),
    (CHILDREN, "if overdue > self._overdue_seconds and", "if False and", _OVERDUE),
    (CHILDREN, "elif zygote.looks_at_same_turn > self._most_looks:", "elif False:", _STILL),
    (CHILDREN, "process.kill_group(pid)", "pass", _FAMILY[:1]),
)  # fmt: skip
_OF_THE_CLAIMS = (
    (PROCESS, "return not any(mark in environment", "return True or any(mark in environment",
     (_DEAD + "test_a_dispatcher_is_dead_only_when_its_executors_are",)),
    (PROCESS, "if start_time(pid) == started:", "if False:",
     (_DEAD + "test_a_dispatcher_is_dead_only_when_its_executors_are",)),
    (CLAIMS, "if token not in ours and not self._pool.knows(token)", "if token not in ours", _KNOWN),
    (CLAIMS, "if token not in ours and not self._pool.knows(token)", "if not self._pool.knows(token)", _TROUBLE),
    (CLAIMS, "if token not in ours and not self._pool.knows(token)", "if False", _TROUBLE),
    (CLAIMS, "        if self.lease_id != lease_id:  # it was lost", "        if False:  # it was lost", _COMPARING),
    (CLAIMS, "            self._must_reconcile = False  # who asks for it from here on wants another one\n"
     "            await self._compare(lease_id)\n",
     "            await self._compare(lease_id)\n            self._must_reconcile = False\n", _COMPARING),
    (CLAIMS, "return self._under_way > 0 or bool(self._undelivered)", "return bool(self._undelivered)", _COMPARING),
    (CLAIMS, "not (self._is_comparing or self._must_reconcile)", "not self._must_reconcile", _BESIDE),
    (CLAIMS, "not (self._is_comparing or self._must_reconcile)", "not self._is_comparing", _BESIDE),
    (CLAIMS, "            return sender is self._first\n", "            return True\n", _BESIDE),
    (CLAIMS, "may_more_be_sent and len(self._unwritten) >= LEAST_BESIDE", "may_more_be_sent", _BESIDE),
    (CLAIMS, "                self._first.event.set()  # it may have waited for our end\n", "", _BESIDE),
    (CLAIMS, "self._stats.runs_claimed - self._asked_for", "self._stats.runs_claimed", _BESIDE),
    (CLAIMS, "in delivery.runs], self._asked_for)", "in delivery.runs], 0)", _BESIDE),
    (CLAIMS, "if found_nothing and self._under_way:", "if False:", _BESIDE),
    (CLAIMS, "await asyncio.sleep(backoff.next_seconds())", "pass", _BESIDE),
    (CLAIMS, "await sender.close()", "pass", _BESIDE),
    (SENDER, "half.cancelled]\n        return Exchange((), refused, busy, cancelled, rest_seconds=0.0)",
     "half.cancelled]\n        return Exchange((), refused, busy, cancelled)", _BESIDE),
    (ROOM, "min(*open_rooms, limit + asked_for) - asked_for", "min(*open_rooms, limit)", _ROOM),
    (ROOM, "min(*open_rooms, limit + asked_for) - asked_for", "min(*open_rooms, limit) - asked_for", _ROOM),
    (CLAIMS, "self._loop.call_later(self._store.deadline_seconds, self.reconcile_soon)", "pass", _LATE_CLAIM),
    (CLAIMS, "if self.lease_id == lease_id:\n                self._unwritten.extendleft",
     "if False:\n                self._unwritten.extendleft", _SESSION),
    (BUSY, "self._waiting.append(ended._replace(times_busy=ended.times_busy + 1))", "pass", _HOLDER),
    (CLAIMS, "if self._is_waiting:", "if True:", ("tests/test_claims_loop.py",)),
    (SESSIONS, "if loop.time() < self._due_at:", "if False:", _ALARM),
    (SESSIONS, "self._alarm = loop.call_at(self._due_at, self._ring)\n            return\n", "return\n", _ALARM),
    (SESSIONS, "                self._due_at = None\n", "                pass\n", _ALARM),
    (BUSY, "SILENT_TRIES = 5", "SILENT_TRIES = 1", ("tests/test_busy.py",)),
    (BUSY, "if ended.times_busy == SILENT_TRIES:", "if True:", ("tests/test_busy.py",)),
    (CLAIMS, "self._pace.look_at_rest(exchange.rest_seconds)", "pass", _REST),
    (CLAIMS, " or self._pace.has_rest", "", _LEFT_OUT),
    (CLAIMS, "(found_nothing and is_whole) or", "found_nothing or", _REST),
    (CLAIMS, "for ended in (*self._unwritten, *self._busy)}", "for ended in self._unwritten}", _HOLDER),
    (CLAIMS, "return not (self._unwritten or self._busy or", "return not (self._unwritten or", _HOLDER),
    (CLAIMS, "if any(flight.token not in held for", "if False and any(flight.token not in held for", _TAKEN),
    (CLAIMS, "        trouble.on_relief(self.reconcile_soon)", "        pass", _TAKEN),
    (SERVICE, "self.housekeeping.lost_leases.add(lease_id)", "pass", _EXIT_CODE),
    (POOL, "if len(flights) > 1 and not cause:", "if False:", _QUARANTINE),
    (POOL, "is_alone=len(flights) == 1", "is_alone=True", _QUARANTINE),
    (QUARANTINE, "executor.is_doomed = executor.is_let_go = True", "executor.is_let_go = True", _QUARANTINE),
    (HOUSEKEEPING, "max(0.01, min(next_seconds, self._poll_pause()))", "self._poll_pause()",
     ("tests/test_delays.py",)),
    (HOUSEKEEPING, 'self._hurries["promote"].set()', "pass", ("tests/test_delays.py",)),
)  # fmt: skip

_OF_ATOMIC = (
    ("id = %(id)s AND epoch = %(epoch)s AND lease_id = %(lease)s AND status = 'RUNNING'", "id = %(id)s", _TAKEN_AWAY),
    ("bool(cursor.rowcount == 1)", "True", _TAKEN_AWAY),
    ("CASE WHEN unique_until > clock_timestamp() THEN unique_key END", "NULL", _MAKES_ROOM),
)


def _statements_with(text: str) -> str:
    """Return the file of SQL that holds this text; the first one if none does, which will be told."""
    return next((path for path in STATEMENTS if text in Path(path).read_text()), STATEMENTS[0])


MUTANTS = (
    *(Mutant(ATOMIC, *mutant) for mutant in _OF_ATOMIC),
    *(Mutant(_statements_with(mutant[0]), *mutant) for mutant in _OF_STATEMENTS),
    *(Mutant(_statements_with(mutant[0]), *mutant, _ANY_ORDER) for mutant in _IN_ANY_ORDER),
    *(Mutant(EXCHANGES, *mutant) for mutant in _OF_EXCHANGES),
    *(Mutant(WALKS, *mutant, _FURTHER_ON) for mutant in _OF_WALKS),
    *(Mutant(BULK, *mutant) for mutant in _OF_BULKS),
    *(Mutant(ENQUEUE, *mutant) for mutant in _OF_ENQUEUE + _OF_BROADCASTS),
    *(Mutant(QUEUES, *mutant, ("tests/test_queues.py",)) for mutant in _OF_THE_ORDER),
    *(Mutant(SCHEDULES, *mutant) for mutant in _OF_SCHEDULES),
    *(Mutant(RULES, *mutant) for mutant in _OF_RULES),
    *(Mutant(TURNS, *mutant) for mutant in _OF_TURNS),
    *(Mutant(*mutant) for mutant in _OF_THE_FENCE + _OF_THE_CLAIMS + _OF_LIMITS + _OF_QUEUES + _OF_WAITING),
    *(Mutant(*mutant) for mutant in _OF_THE_AGENDA),
    *(Mutant(*mutant) for mutant in SQLITE_MUTANTS),
)
