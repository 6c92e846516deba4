"""Schedules: rules that enqueue runs at times, and which occurrence of which schedule a run is."""

import datetime
from importlib import import_module

import django.db.models.deletion
from django.db import migrations, models

RunPostgres = import_module("django_dispatch.migrations.0002_postgres").RunPostgres

# Schedules are edited by anybody: the admin, code, psql. So it is the table that notices when a rule has changed, and
# that never lets a writer who read the row a while ago (Model.save() writes every column) put the times back.
TRIGGER = """
CREATE FUNCTION django_dispatch_replan() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' THEN
    IF (NEW.enabled, NEW.cron, NEW.every, NEW.once_at, NEW.time_zone, NEW.start_at, NEW.end_at)
       IS NOT DISTINCT FROM
       (OLD.enabled, OLD.cron, OLD.every, OLD.once_at, OLD.time_zone, OLD.start_at, OLD.end_at) THEN
      NEW.revision := OLD.revision;
      NEW.last_at := greatest(NEW.last_at, OLD.last_at);
      IF OLD.planned_revision = OLD.revision THEN
        NEW.next_at := CASE WHEN NEW.next_at < OLD.next_at OR NEW.planned_revision <> OLD.planned_revision
                       THEN OLD.next_at ELSE NEW.next_at END;
        NEW.planned_revision := OLD.planned_revision;
      END IF;
      RETURN NEW;
    END IF;
    NEW.revision := OLD.revision + 1;
    NEW.planned_revision := OLD.planned_revision;
    NEW.problem := '';
    NEW.next_at := NULL;
    NEW.last_at := greatest(NEW.last_at, OLD.last_at);
  END IF;
  PERFORM pg_notify('django_dispatch', 'schedule:changed');
  RETURN NEW;
END $$;
CREATE TRIGGER django_dispatch_replan BEFORE INSERT OR UPDATE ON django_dispatch_schedule
  FOR EACH ROW EXECUTE FUNCTION django_dispatch_replan();
"""
NO_TRIGGER = """
DROP TRIGGER django_dispatch_replan ON django_dispatch_schedule;
DROP FUNCTION django_dispatch_replan();
"""


class RunSqlite(RunPostgres):
    """SQL for SQLite. A migration that has the table made anew, as most changes of columns do there, loses triggers."""

    vendor = "sqlite"


# The same for SQLite, where a trigger can only correct what was written. It does not fire itself.
RULE = ("enabled", "cron", "every", "once_at", "time_zone", "start_at", "end_at")
IS_SAME = " AND ".join(f"NEW.{column} IS OLD.{column}" for column in RULE)
IS_PLANNED = "OLD.planned_revision = OLD.revision"
SQLITE_TRIGGER = f"""
CREATE TRIGGER django_dispatch_replan AFTER UPDATE ON django_dispatch_schedule FOR EACH ROW BEGIN
  UPDATE django_dispatch_schedule SET
    revision = CASE WHEN {IS_SAME} THEN OLD.revision ELSE OLD.revision + 1 END,
    planned_revision = CASE WHEN {IS_SAME} AND NOT ({IS_PLANNED}) THEN NEW.planned_revision
                       ELSE OLD.planned_revision END,
    problem = CASE WHEN {IS_SAME} THEN NEW.problem ELSE '' END,
    next_at = CASE WHEN NOT ({IS_SAME}) THEN NULL
              WHEN {IS_PLANNED} AND (NEW.next_at < OLD.next_at OR NEW.planned_revision <> OLD.planned_revision)
              THEN OLD.next_at ELSE NEW.next_at END,
    last_at = coalesce(max(NEW.last_at, OLD.last_at), NEW.last_at, OLD.last_at)
  WHERE id = NEW.id;
END;
"""
NO_SQLITE_TRIGGER = "DROP TRIGGER django_dispatch_replan;"


class Migration(migrations.Migration):
    dependencies = [
        ("django_dispatch", "0004_run_ready_at"),
    ]

    operations = [
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=255, unique=True, verbose_name="name")),
                ("task", models.CharField(max_length=255, verbose_name="task")),
                ("args", models.JSONField(blank=True, db_default=[], default=list, verbose_name="args")),
                ("kwargs", models.JSONField(blank=True, db_default={}, default=dict, verbose_name="kwargs")),
                ("queue", models.CharField(blank=True, max_length=100, null=True, verbose_name="queue")),
                ("priority", models.SmallIntegerField(blank=True, null=True, verbose_name="priority")),
                ("enabled", models.BooleanField(db_default=True, default=True, verbose_name="enabled")),
                ("cron", models.CharField(blank=True, max_length=100, null=True, verbose_name="cron")),
                ("every", models.DurationField(blank=True, null=True, verbose_name="every")),
                ("once_at", models.DateTimeField(blank=True, null=True, verbose_name="once at")),
                (
                    "time_zone",
                    models.CharField(db_default="UTC", default="UTC", max_length=64, verbose_name="time zone"),
                ),
                ("start_at", models.DateTimeField(blank=True, null=True, verbose_name="start at")),
                ("end_at", models.DateTimeField(blank=True, null=True, verbose_name="end at")),
                (
                    "catch_up",
                    models.CharField(
                        choices=[
                            ("none", "skip what is more than a minute late"),
                            ("last", "run the last one missed"),
                            ("all", "run every one missed"),
                        ],
                        db_default="last",
                        default="last",
                        max_length=4,
                        verbose_name="catch up",
                    ),
                ),
                (
                    "catch_up_window",
                    models.DurationField(
                        db_default=datetime.timedelta(days=1),
                        default=datetime.timedelta(days=1),
                        verbose_name="catch-up window",
                    ),
                ),
                (
                    "overlap",
                    models.CharField(
                        choices=[("allow", "enqueue beside it"), ("skip", "skip the occurrence")],
                        db_default="allow",
                        default="allow",
                        max_length=5,
                        verbose_name="overlap",
                    ),
                ),
                ("next_at", models.DateTimeField(blank=True, editable=False, null=True, verbose_name="next at")),
                ("last_at", models.DateTimeField(blank=True, editable=False, null=True, verbose_name="last at")),
                (
                    "revision",
                    models.PositiveIntegerField(db_default=1, default=1, editable=False, verbose_name="revision"),
                ),
                (
                    "planned_revision",
                    models.PositiveIntegerField(
                        db_default=0, default=0, editable=False, verbose_name="planned revision"
                    ),
                ),
                (
                    "problem",
                    models.TextField(blank=True, db_default="", default="", editable=False, verbose_name="problem"),
                ),
                (
                    "source",
                    models.CharField(
                        choices=[("code", "code"), ("admin", "admin")],
                        db_default="admin",
                        default="admin",
                        editable=False,
                        max_length=5,
                        verbose_name="source",
                    ),
                ),
                (
                    "declared_at",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="declared at"),
                ),
            ],
            options={
                "verbose_name": "schedule",
                "verbose_name_plural": "schedules",
            },
        ),
        migrations.AddField(
            model_name="run",
            name="scheduled_for",
            field=models.DateTimeField(blank=True, null=True, verbose_name="scheduled for"),
        ),
        migrations.AlterField(
            model_name="run",
            name="source",
            field=models.CharField(
                choices=[("app", "application"), ("sql", "plain SQL"), ("notify", "message"), ("schedule", "schedule")],
                db_default="sql",
                max_length=10,
                verbose_name="source",
            ),
        ),
        migrations.AddField(
            model_name="run",
            name="schedule",
            field=models.ForeignKey(
                blank=True,
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.DO_NOTHING,
                to="django_dispatch.schedule",
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("finished_at__isnull", True), ("schedule__isnull", False)),
                fields=["schedule"],
                name="dispatch_run_overlap",
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.UniqueConstraint(
                condition=models.Q(("schedule__isnull", False)),
                fields=("schedule", "scheduled_for"),
                name="dispatch_run_slot",
            ),
        ),
        RunPostgres(TRIGGER, NO_TRIGGER),
        RunSqlite([SQLITE_TRIGGER], NO_SQLITE_TRIGGER),
    ]
