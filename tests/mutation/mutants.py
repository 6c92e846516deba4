"""The guards, one mutant each: what is taken out of which file, and the tests that must notice.

A text stands once in its file; keep it short. Not here, because it changes nothing that can be seen: MATERIALIZED where
rows are locked (PostgreSQL never inlines such an expression), and ``status = 'RUNNING'`` beside a lease that must fit
(a constraint of the table says so).
"""

from typing import NamedTuple

STATEMENTS = "django_dispatch/store/statements.py"
ENQUEUE = "django_dispatch/store/postgres_enqueue.py"
LEASE = "django_dispatch/dispatcher/lease.py"
FENCE = "django_dispatch/executors/fence.py"
ZYGOTE = "django_dispatch/executors/zygote.py"
CLAIMS = "django_dispatch/dispatcher/claims.py"
SERVICE = "django_dispatch/dispatcher/service.py"
SYNC = "django_dispatch/executors/sync.py"
LOOP = "django_dispatch/executors/loop.py"
PROCESS = "django_dispatch/dispatcher/process.py"


class Mutant(NamedTuple):
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

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
_DEADLOCK = _store("postgres_races", "TestNoDeadlock")
_IDLE = _store("postgres_races", "test_an_idle_look_writes_nothing")
_STEERING = ("tests/test_steering.py",)
_FENCE_TESTS = ("tests/test_fence.py",)
_KEEPER = ("tests/test_lease_keeper.py",)
_LOST = "tests/faults/test_lost_leases.py::"
_GROUND = (_LOST + "test_a_lost_lease_is_followed_by_another_one_only_when_its_bodies_are_dead",)
_FROZEN = (_LOST + "test_the_bodies_of_a_frozen_dispatcher_are_dead_before_its_lease_expires",)
_DEAD = "tests/faults/test_dead_dispatchers.py::"
_KNOWN = ("tests/faults/test_reconciling.py",)
_TROUBLE = (
    "tests/faults/test_claims.py::test_a_claim_that_was_committed_after_its_connection_broke_is_released",
    _DEAD + "test_a_terminated_session_costs_no_run",
)

_LIVE = "WHERE id = %(lease)s AND expires_at > clock_timestamp() AND %(limit)s > 0"
_EXPIRED = "WHERE expires_at < clock_timestamp() - %(grace)s * interval '1 second' OR id = ANY(%(dead)s::uuid[])"
_FINISHED = "WHERE r.id = s.id AND r.epoch = s.epoch AND r.lease_id IS NOT DISTINCT FROM %(lease)s"
_PROGRESS = "WHERE r.id = p.id AND r.epoch = p.epoch AND r.lease_id IS NOT DISTINCT FROM %(lease)s"

_OF_STATEMENTS = (
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
    ("FOR NO KEY UPDATE\n), picked", "), picked", _AGAINST),
    ("AND EXISTS (\n    SELECT FROM unnest", "AND EXISTS (\n    SELECT UNION ALL SELECT FROM unnest", _IDLE),
    ("WHERE status = 'READY' AND queue = q.name AND task", "WHERE queue = q.name AND task", _CLAIMS),
    ("AND queue = q.name AND task", "AND task", _CLAIMS),
    (" AND task <> ALL(%(excluded)s::text[])", "", _CLAIMS),
    ("ORDER BY priority DESC, id LIMIT 10000", "ORDER BY id LIMIT 10000", _CLAIMS),
    ("ORDER BY priority DESC, id LIMIT 10000", "ORDER BY priority DESC, id DESC LIMIT 10000", _CLAIMS),
    ("LIMIT 10000 FOR NO KEY UPDATE SKIP LOCKED", "LIMIT 10000 FOR NO KEY UPDATE", _AT_ONCE),
    ("LIMIT 10000 FOR NO KEY UPDATE SKIP LOCKED", "LIMIT 10000", _AT_ONCE),
    ("AS p\n  LIMIT %(limit)s", "AS p", _CLAIMS),
    ("epoch = r.epoch + 1", "epoch = r.epoch", _CLAIMS),
    ("attempt = r.attempt + 1", "attempt = r.attempt", _CLAIMS),
    ("THEN 'fail' ELSE r.on_lost END", "THEN r.on_lost ELSE r.on_lost END", _CLAIMS),
    # finish
    (_FINISHED, _FINISHED.replace("r.epoch = s.epoch AND ", ""), _SETTLEMENTS),
    (_FINISHED, _FINISHED.replace(" AND r.lease_id IS NOT DISTINCT FROM %(lease)s", ""), _SETTLEMENTS),
    ("r.cancel_requested_at IS NOT NULL AND s.status IN", "false AND s.status IN", _SETTLEMENTS),
    ("r.cancel_requested_at IS NOT NULL AND s.status IN ('READY', 'SCHEDULED')", "r.cancel_requested_at IS NOT NULL",
     _SETTLEMENTS),
    ('after="AND (SELECT count(*) FROM finished) >= 0"', 'after=""', _DEADLOCK),
    ("r.attempt - 1 + coalesce(s.started, 1)", "r.attempt", _SETTLEMENTS),
    ("failures = r.failures + coalesce(s.failed, 0)", "failures = r.failures", _SETTLEMENTS),
    ("r.interruptions + coalesce(s.interrupted, 0)", "r.interruptions", _SETTLEMENTS),
    ("WHERE id NOT IN (SELECT id FROM finished)", "WHERE false", _SETTLEMENTS),
    ('HELD = f"SELECT id, epoch FROM {RUN} WHERE lease_id = %(lease)s"',
     'HELD = f"SELECT id, epoch FROM {RUN} WHERE lease_id IS NOT NULL"', _SETTLEMENTS),
    ("WHERE lease_id = %(lease)s AND cancel_requested_at", "WHERE cancel_requested_at", _SETTLEMENTS),
    (" AND cancel_requested_at IS NOT NULL\"", "\"", _SETTLEMENTS),
    (_PROGRESS, _PROGRESS.replace("r.epoch = p.epoch AND ", ""), _SETTLEMENTS),
    (_PROGRESS, _PROGRESS.replace(" AND r.lease_id IS NOT DISTINCT FROM %(lease)s", ""), _SETTLEMENTS),
    # reclaim
    (_EXPIRED, "WHERE true OR id = ANY(%(dead)s::uuid[])", _RECLAIMS),
    (_EXPIRED, "WHERE expires_at < clock_timestamp() OR id = ANY(%(dead)s::uuid[])", _RECLAIMS),
    (_EXPIRED, "WHERE expires_at < clock_timestamp() - %(grace)s * interval '1 second'", _RECLAIMS),
    (_EXPIRED, _EXPIRED.replace("clock_timestamp", "now"), _CLOCK),
    ("ORDER BY expires_at LIMIT 20", "LIMIT 20", _RECLAIMS),
    ("ORDER BY expires_at LIMIT 20", "ORDER BY expires_at", _RECLAIMS),
    ("LIMIT 20 FOR UPDATE SKIP LOCKED", "LIMIT 20 FOR UPDATE", _AGAINST + _SWEEPS),
    ("LIMIT 20 FOR UPDATE SKIP LOCKED", "LIMIT 20", _AGAINST + _SWEEPS),
    ("FOR NO KEY UPDATE OF r SKIP LOCKED", "FOR NO KEY UPDATE OF r", _AGAINST + _DEADLOCK),
    ("DELETE FROM {LEASE} USING expired WHERE {LEASE}.id = expired.id",
     "DELETE FROM {LEASE} USING expired WHERE {LEASE}.id = expired.id AND false", _RECLAIMS),
    ("AND NOT EXISTS (SELECT FROM {LEASE} AS l WHERE l.id = r.lease_id)", "", _RECLAIMS),
    ("LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED", "LIMIT 1000 FOR NO KEY UPDATE", _SWEEPS),
    ("WHEN r.cancel_requested_at IS NOT NULL THEN 'CANCELLED'", "WHEN false THEN 'CANCELLED'", _RECLAIMS),
    ("r.on_lost = 'fail' OR ", "", _RECLAIMS),
    (" OR r.interruptions + 1 >= %(max_interruptions)s", "", _RECLAIMS),
    ("r.interruptions + 1 >= %(max_interruptions)s", "r.interruptions >= %(max_interruptions)s", _RECLAIMS),
    ("WHEN r.interruptions = 0 THEN 'READY' ELSE 'SCHEDULED' END", "ELSE 'READY' END", _RECLAIMS),
    ("lease_id = NULL, interruptions = r.interruptions + 1", "lease_id = NULL, interruptions = r.interruptions",
     _RECLAIMS),
    # promote, prune and the rest
    ("WHERE status = 'SCHEDULED' AND run_after <= clock_timestamp()", "WHERE run_after <= clock_timestamp()",
     _HOUSEKEEPING),
    ("WHERE status = 'SCHEDULED' AND run_after <= clock_timestamp()", "WHERE status = 'SCHEDULED'", _HOUSEKEEPING),
    ("AND run_after <= clock_timestamp()", "AND run_after <= now()", _CLOCK),
    ("ORDER BY run_after LIMIT %(limit)s FOR", "LIMIT %(limit)s FOR", _HOUSEKEEPING),
    ("ORDER BY run_after LIMIT %(limit)s FOR", "ORDER BY run_after FOR", _HOUSEKEEPING),
    ("run_after LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED", "run_after LIMIT %(limit)s FOR NO KEY UPDATE", _SWEEPS),
    ("AND finished_at < clock_timestamp() - %(age)s * interval '1 second'", "", _HOUSEKEEPING),
    ("AND finished_at < clock_timestamp() - %(age)s", "AND finished_at < now() - %(age)s", _CLOCK),
    ("\n    AND status = %(status)s", "", _HOUSEKEEPING),
    ("ORDER BY finished_at LIMIT %(limit)s", "LIMIT %(limit)s", _HOUSEKEEPING),
    ("ORDER BY finished_at LIMIT %(limit)s", "ORDER BY finished_at", _HOUSEKEEPING),
    ("finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED", "finished_at LIMIT %(limit)s FOR UPDATE", _SWEEPS),
    ("WHERE host = %(host)s AND id", "WHERE id", _LEASES),
    (" AND id IS DISTINCT FROM %(besides)s", "", _LEASES),
)  # fmt: skip

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
    (LEASE, "self._may_acquire = False", "self._may_acquire = True", _GROUND),
    (SERVICE, 'await self.pool.kill_all("lease")', "await asyncio.sleep(0)", _GROUND),
    (ZYGOTE, "if self._children and now_ns() >= self._board.deadline_ns()", "if False", _FROZEN),
)  # fmt: skip
_OF_THE_CLAIMS = (
    (PROCESS, "return not any(mark in environment", "return True or any(mark in environment",
     (_DEAD + "test_a_dispatcher_is_dead_only_when_its_executors_are",)),
    (PROCESS, "if start_time(pid) == started:", "if False:",
     (_DEAD + "test_a_dispatcher_is_dead_only_when_its_executors_are",)),
    (CLAIMS, "if token not in ours and not self._pool.knows(token)", "if token not in ours", _KNOWN),
    (CLAIMS, "if token not in ours and not self._pool.knows(token)", "if not self._pool.knows(token)", _TROUBLE),
    (CLAIMS, "if token not in ours and not self._pool.knows(token)", "if False", _TROUBLE),
    (CLAIMS, "self._loop.call_later(self._store.deadline_seconds, self._reconcile_soon)", "pass", _TROUBLE),
)  # fmt: skip

MUTANTS = (
    *(Mutant(STATEMENTS, *mutant) for mutant in _OF_STATEMENTS),
    *(Mutant(ENQUEUE, *mutant) for mutant in _OF_ENQUEUE),
    *(Mutant(*mutant) for mutant in _OF_THE_FENCE + _OF_THE_CLAIMS),
)
