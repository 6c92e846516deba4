"""Queues that are paused, and runs that say for how long they are kept."""

from importlib import import_module

import django.db.models.functions.datetime
from django.db import migrations, models

RunPostgres = import_module("django_dispatch.migrations.0002_postgres").RunPostgres

# When a run may go that has a retention of its own. Of the arithmetic of times, only that without a time zone can be
# indexed. Null, so never found: it is kept for ever.
PRUNE_OWN = """
CREATE INDEX dispatch_run_prune_own ON django_dispatch_run
  (((finished_at AT TIME ZONE 'UTC') + make_interval(secs => (retention ->> status)::float8)))
  WHERE finished_at IS NOT NULL AND retention IS NOT NULL;
"""
# A value that the index cannot take would fail the finish of its run: it is refused where it is written down.
RETENTION = """
ALTER TABLE django_dispatch_run ADD CONSTRAINT dispatch_run_retention CHECK (retention IS NULL OR
  jsonb_typeof(retention) = 'object' AND NOT jsonb_path_exists(retention,
    '$.* ? (@.type() != "null" && @.type() != "number" || @ < 0 || @ > 4000000000)'));
"""
NO_RETENTION = "ALTER TABLE django_dispatch_run DROP CONSTRAINT dispatch_run_retention;"
NO_PRUNE_OWN = "DROP INDEX dispatch_run_prune_own;"


class Migration(migrations.Migration):
    dependencies = [("django_dispatch", "0007_limits")]

    operations = [
        migrations.CreateModel(
            name="PausedQueue",
            fields=[
                ("name", models.CharField(max_length=100, primary_key=True, serialize=False, verbose_name="queue")),
                ("reason", models.TextField(blank=True, db_default="", max_length=1000, verbose_name="reason")),
                ("paused_by", models.CharField(blank=True, db_default="", max_length=150, verbose_name="paused by")),
                (
                    "paused_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False, verbose_name="paused at"
                    ),
                ),
                ("paused_until", models.DateTimeField(blank=True, null=True, verbose_name="paused until")),
            ],
            options={"verbose_name": "paused queue", "verbose_name_plural": "paused queues"},
        ),
        migrations.AddField(
            model_name="run",
            name="retention",
            field=models.JSONField(blank=True, null=True, verbose_name="retention"),
        ),
        migrations.RemoveIndex(model_name="run", name="dispatch_run_prune"),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("finished_at__isnull", False), ("retention__isnull", True)),
                fields=["finished_at"],
                name="dispatch_run_prune",
            ),
        ),
        RunPostgres(RETENTION, NO_RETENTION),
        RunPostgres(PRUNE_OWN, NO_PRUNE_OWN),
    ]
