"""A fifth of each page is left free, for what becomes of the rows in it.

An update that finds no room in the page of its row logs a lock of that row first: two of them a run, a twelfth of all
that a run writes to the WAL. Half of them find room with this.
"""

from importlib import import_module

from django.db import migrations

RunPostgres = import_module("django_dispatch.migrations.0002_postgres").RunPostgres


class Migration(migrations.Migration):
    dependencies = [("django_dispatch", "0011_shortest_words")]

    operations = [
        RunPostgres(
            "ALTER TABLE django_dispatch_run SET (fillfactor = 80)",
            "ALTER TABLE django_dispatch_run RESET (fillfactor)",
        ),
    ]
