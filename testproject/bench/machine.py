"""Where the figures come from: the machine, the versions, the server's settings."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import psycopg

SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "wal_level", "shared_buffers", "max_wal_size")


def description(sql: "psycopg.Connection[Any]") -> dict[str, str]:
    """Return what whoever reads the figures must know."""
    rows = dict(sql.execute("SELECT name, current_setting(name) FROM unnest(%s::text[]) AS name", [list(SETTINGS)]))
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    return {
        "machine": f"{os.cpu_count()} cores of {_processor()}, {_memory()}, {_system()}",
        "load before": f"{load} (1, 5, 15 minutes)",
        "versions": (
            f"django-dispatch {version('django-dispatch')}, Python {platform.python_version()},"
            f" Django {version('django')}, psycopg {version('psycopg')} ({psycopg.pq.__impl__}),"
            f" PostgreSQL {sql.info.parameter_status('server_version')}"
        ),
        "server": ", ".join(f"{name} {rows[name]}" for name in SETTINGS),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory() -> str:
    return f"{psutil.virtual_memory().total / 1e9:.0f} GB"


def _system() -> str:
    return f"{platform.system()} {platform.release().partition('-')[0]}"
