"""The guards of the store on SQLite; see ``mutants``."""

SESSION = "django_dispatch/store/sqlite_session.py"
CLAIMS = "django_dispatch/store/sqlite_claims.py"
HOUSEKEEPING = "django_dispatch/store/sqlite_housekeeping.py"
LIMITS = "django_dispatch/store/sqlite_limits.py"
CALLERS = "django_dispatch/store/sqlite_callers.py"
SCHEDULES = "django_dispatch/store/sqlite_schedules.py"
TURNS = "django_dispatch/store/sqlite_turns.py"
PRUNE = "django_dispatch/store/sqlite_prune.py"
RULES = "django_dispatch/migrations/0005_schedules.py"


def _store(module: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/store/test_{module}.py::{name}" for name in names) or (f"tests/store/test_{module}.py",)


_LOCKS = _store("sqlite_locks")
_SETTLEMENTS = _store("settlements")
_FAIR = _store("fairness")
_WAITING = _store("waiting")
_DUPLICATES = ("tests/test_duplicates.py",)

SQLITE_MUTANTS = (
    # whose turn it is
    (SESSION, '"BEGIN IMMEDIATE"', '"BEGIN"', _LOCKS),
    (SESSION, 'connection.transaction_mode = "IMMEDIATE"', 'connection.transaction_mode = "DEFERRED"', _LOCKS),
    (SESSION, "            _take_the_lock(connection)\n", "", _LOCKS),
    (SESSION, ' and not is_too_late', "", _LOCKS),
    (SESSION, " or not may_go_on()", "", _store("sqlite_locks", "test_who_waits_can_be_broken_off")),
    (SESSION, 'if "journal_mode" not in str(options.get("init_command")):', "if True:", _LOCKS),
    (SESSION, 'self._wait_for(lambda: _execute(connection, "PRAGMA journal_mode = WAL"))',
     '_execute(connection, "PRAGMA journal_mode = WAL")', _LOCKS),
    (CLAIMS, "    if not settlements and not may_claim:\n        return Exchange([], [], [])\n", "", _LOCKS),
    (HOUSEKEEPING, "dead=dead):\n        return []", "dead=dead) is None:\n        return []", _LOCKS),
    (PRUNE, "**_params(prunable)):\n        return 0", "**_params(prunable)):\n        pass", _LOCKS),
    # claim and finish
    (CLAIMS, "WHERE id = %(id)s AND expires_at > %(now)s\", id=lease_id.hex", 'WHERE id = %(id)s", id=lease_id.hex',
     _store("claims")),
    (CLAIMS, '" slots = coalesce(%(slots)s, slots) WHERE id = %(id)s AND expires_at > %(now)s"',
     '" slots = coalesce(%(slots)s, slots) WHERE id = %(id)s"', _store("leases")),
    (CLAIMS, '"id = %(id)s AND epoch = %(epoch)s AND', '"id = %(id)s AND', _SETTLEMENTS),
    (CLAIMS, " AND lease_id = %(lease)s AND status = 'RUNNING'\"", "\"", _SETTLEMENTS),
    (CLAIMS, "epoch = epoch + 1", "epoch = epoch", _store("claims")),
    (CLAIMS, "{IN_LINE} LIMIT", "ORDER BY {PLACE} LIMIT", _store("claims")),
    (CLAIMS, "{IN_LINE} LIMIT", "ORDER BY priority DESC, id LIMIT", _FAIR),
    (CLAIMS, "  AND (expires_at IS NULL OR attempt > 0 OR expires_at > %(now)s)\n", "", _store("claims")),
    (CLAIMS, "AND queue = %(queue)s AND NOT {IS_PAUSED}", "AND queue = %(queue)s", _store("queues")),
    (CLAIMS, " AND NOT EXISTS (SELECT 1 FROM {RUN} WHERE lease_id = %(id)s)", "", _store("leases")),
    (CLAIMS, '"CANCELLED" if is_cancelled and s.status in ("READY", "SCHEDULED") else s.status', "s.status",
     _SETTLEMENTS),
    (CLAIMS, "if status not in (None, s.status)]", "if status is False]", _SETTLEMENTS),
    # the wait for wakeups
    (CLAIMS, "{LEASE} WHERE id = %(id)s AND expires_at > %(now)s\nON", "{LEASE} WHERE id = %(id)s\nON", _WAITING),
    (CLAIMS, "queues = excluded.queues, is_waiting = excluded.is_waiting", "queues = excluded.queues", _WAITING),
    (CLAIMS, "        forget_waiters(tx)\n", "", _WAITING),
    (HOUSEKEEPING, "        forget_waiters(tx)\n", "", _WAITING),
    (HOUSEKEEPING, '\n        f" OR EXISTS (SELECT 1 FROM {WAITER} WHERE {_IS_ORPHAN})"', "", _WAITING),
    # turns
    (TURNS, "return int(last) + 2", "return int(last)", _FAIR),
    (TURNS, " AND fair_key = %(key)s", "", _FAIR),
    (TURNS, "int(first + 1 + first % 2)", "int(first)", _FAIR),
    (TURNS, "int(first + 1 + first % 2)", "int(first + 1)", _FAIR),
    (TURNS, "{_IN_THAT_LINE} ORDER BY turn LIMIT 1", "{_IN_THAT_LINE} ORDER BY turn DESC LIMIT 1", _FAIR),
    (TURNS, "return run_id * 2", "return 0", _FAIR),
    (TURNS, " AND priority = %(level)s", "", _FAIR),
    (TURNS, "coalesce(blocked_by, queue) = %(line)s AND ", "", _FAIR),
    (TURNS, "coalesce(blocked_by, queue), priority, fair_key,", "queue, priority, fair_key,", _FAIR),
    (TURNS, "None if has_place or are_back else key", "None if are_back else key", _FAIR),
    (TURNS, " AND on_duplicate IN (SELECT value FROM json_each(%(in_order)s))", "", _FAIR),
    (TURNS, "coalesce(blocked_by = concurrency_key, 0) AND ", "", _FAIR),
    (TURNS, 'IN_ORDER = ("serial", "queue_one")', "IN_ORDER = ()", _FAIR),
    (TURNS, "    tx.change(_LEAVE, ids=ids)\n", "", _FAIR),
    (CALLERS, "None if new.fair_key is None else line_up(tx, [run_id]).get(run_id)", "None", _FAIR),
    (CALLERS, "            line_up(tx, [new.pk])\n", "            pass\n", _FAIR),
    (SCHEDULES, "        line_up(tx, run_ids)\n", "        pass\n", _store("scheduled_limits")),
    (CLAIMS, 'if status == "READY" and s.was_started', 'if status == "READY"', _FAIR),
    (CLAIMS, "            line_up(tx, back, are_back=True)\n", "", _FAIR),
    (HOUSEKEEPING, 'for run in reclaimed if run.status == "READY"], are', "for run in reclaimed if False], are", _FAIR),
    (HOUSEKEEPING, "            line_up(tx, [run_id for", "            _ = ([run_id for", _FAIR),
    (HOUSEKEEPING, "None if key is None else next_turn(tx, queue, top, key, run_id)", "None", _FAIR),
    (LIMITS, "{IN_LINE} LIMIT %(room)s", "ORDER BY priority DESC, id LIMIT %(room)s", _FAIR),
    (LIMITS, "if not is_queue:", "if True:", _FAIR),
    (LIMITS, "            line_up(tx, ids)\n", "            pass\n", _FAIR),
    # housekeeping
    (HOUSEKEEPING, ' or interruptions + 1 >= max_interruptions', "", _store("reclaims")),
    (HOUSEKEEPING, 'on_lost == "fail" or ', "", _store("reclaims")),
    (HOUSEKEEPING, "expires_at < %(dead_at)s OR id", "true OR id", _store("reclaims")),
    (HOUSEKEEPING, " and queue not in live", "", ("tests/test_broadcast.py",)),
    (HOUSEKEEPING, "attempt = 0 AND status IN ('SCHEDULED', 'READY', 'BLOCKED')\"\n_NEXT_DUE",
     "status IN ('SCHEDULED', 'READY', 'BLOCKED')\"\n_NEXT_DUE", _store("housekeeping")),
    # limits and duplicates
    (LIMITS, "min(room, limit.concurrency - _taken(tx, key))", "room", _store("admission")),
    (LIMITS, "room if tokens is None else min(room, floor(tokens))", "room", _store("admission")),
    (LIMITS, "_note_tokens(tx, key, tokens)\n            if", "pass\n            if", _store("admission")),
    (CALLERS, "        give_way(tx, new.unique_key)\n    row", "        pass\n    row", _DUPLICATES),
    (CALLERS, "AND {_GIVES_WAY}", "", _DUPLICATES),
    (CALLERS, 'else "READY" if blocked_by is None else "BLOCKED"', 'else "READY"', _DUPLICATES),
    # schedules
    (SCHEDULES, " AND CAST(next_at AS text) IS %(token)s", "", _store("schedules")),
    (SCHEDULES, "id = %(id)s AND revision = %(revision)s AND", "id = %(id)s AND", _store("schedules")),
    (SCHEDULES, "if slot not in known", "", _store("scheduled_limits")),
    (RULES, "ELSE OLD.revision + 1 END", "ELSE OLD.revision END", _store("schedules")),
    (RULES, "THEN OLD.next_at ELSE NEW.next_at END,\n    last_at", "THEN NEW.next_at END,\n    last_at",
     _store("schedules")),
)  # fmt: skip
