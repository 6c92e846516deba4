#!/usr/bin/env python
"""Django's command line for the test project, with a PostgreSQL behind it."""

import os
import sys

from django_dispatch import alive


def main() -> None:
    """Run one management command; without DATABASE_URL, on the embedded server."""
    alive.answer_early(sys.argv[1:])

    from django.core.management import execute_from_command_line

    from testproject import postgres

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    if not os.environ.get("DATABASE_URL"):
        postgres.ensure_server()
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
