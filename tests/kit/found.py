"""What a body finds in its process and in its database session, be it left by another one."""

import gc
import locale
import os
import signal
import subprocess
import sys
import time
from typing import Any

from django.db import connection, connections
from django.utils import timezone, translation

from .misdeeds import VARIABLE, context_variable


def what_is_found() -> dict[str, Any]:
    """Describe what a body finds in its process and in its database session."""
    return {
        "handlers": [repr(signal.getsignal(number)).split(" at 0x")[0] for number in range(1, 32)],
        "timers": [
            signal.getitimer(timer) for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
        ],
        "mask": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "directory": os.getcwd(),
        "umask": _umask(),
        "variables": [os.environ.get(name, "") for name in (VARIABLE, "TZ", "KIT_DIR")],
        "zone": time.tzname[0],
        "locale": locale.setlocale(locale.LC_ALL),
        "recursion": sys.getrecursionlimit(),
        "collector": gc.isenabled(),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "output": [(stream.fileno(), stream.closed) for stream in (sys.stdout, sys.stderr)],
        "files": [os.readlink(f"/proc/self/fd/{descriptor}") for descriptor in (0, 1, 2)],
        "contexts": [translation.get_language(), timezone.get_current_timezone_name(), context_variable.get()],
        "programs": subprocess.run(["true"], check=False).returncode,
        "session": [_ask(f"SELECT current_setting('{name}')") for name in ("search_path", "statement_timeout")],
        "isolation": _ask("SHOW transaction_isolation"),
        "role": _ask("SELECT current_user = session_user"),
        "table": _ask("SELECT relpersistence FROM pg_class WHERE oid = 'kit_ledger'::regclass"),
        "listens": _ask("SELECT count(*) FROM pg_listening_channels()"),
        "locked": _ask("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"),
        "transaction": [connections[alias].in_atomic_block for alias in connections],
        "autocommit": [connections[alias].get_autocommit() for alias in connections],
    }


def _umask() -> int:
    now = os.umask(0o22)
    os.umask(now)
    return now


def _ask(query: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(query)
        (answer,) = cursor.fetchone()
    return answer
