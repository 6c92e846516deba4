"""What Django's models cannot say: the wakeup for rows of plain SQL, and autovacuum settings for a queue table."""

import sqlparse
from django.db import migrations

# At most one open transaction carries a NOTIFY: the lock that a notifying commit takes over the whole instance is
# held across its WAL flush. Who does not get the gate is seen by the dispatchers' second looks, or by their poll.
TRIGGER = """
CREATE FUNCTION django_dispatch_wake() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM inserted WHERE source = 'sql' AND status = 'READY')
     AND pg_try_advisory_xact_lock(hashtext('django_dispatch'), hashtext(TG_TABLE_SCHEMA)) THEN
    PERFORM pg_notify('django_dispatch', 'ready:' || i.queue)
      FROM (SELECT DISTINCT queue FROM inserted WHERE source = 'sql' AND status = 'READY') i;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER django_dispatch_wake AFTER INSERT ON django_dispatch_run
  REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT EXECUTE FUNCTION django_dispatch_wake();
"""
NO_TRIGGER = """
DROP TRIGGER django_dispatch_wake ON django_dispatch_run;
DROP FUNCTION django_dispatch_wake();
"""

# Vacuum by count, not by share: history must not postpone it. Keep the empty tail: truncating it locks out claims.
# Renewals are heap-only on half-filled lease pages; no run update can be (status is in every index's predicate).
STORAGE = """
ALTER TABLE django_dispatch_run SET (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000,
  autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
ALTER TABLE django_dispatch_lease SET (
  fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
"""
DEFAULT_STORAGE = """
ALTER TABLE django_dispatch_run RESET (
  autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold, autovacuum_vacuum_insert_scale_factor,
  autovacuum_vacuum_insert_threshold, autovacuum_analyze_scale_factor, autovacuum_analyze_threshold,
  autovacuum_vacuum_cost_delay, vacuum_truncate);
ALTER TABLE django_dispatch_lease RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold);
"""


def one_by_one(sql):
    """Return the statements of a text. A project's connections may prepare whatever they execute: never several."""
    return sqlparse.split(sql) if isinstance(sql, str) else sql


class RunPostgres(migrations.RunSQL):
    """SQL for PostgreSQL. On SQLite the store does by itself what this is for, as far as it can be done there."""

    vendor = "postgresql"

    def __init__(self, sql, reverse_sql):
        super().__init__(one_by_one(sql), one_by_one(reverse_sql))

    def database_forwards(self, app_label, schema_editor, from_state, to_state):
        if schema_editor.connection.vendor == self.vendor:
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label, schema_editor, from_state, to_state):
        if schema_editor.connection.vendor == self.vendor:
            super().database_backwards(app_label, schema_editor, from_state, to_state)


class Migration(migrations.Migration):
    dependencies = [("django_dispatch", "0001_initial")]

    operations = [
        RunPostgres(TRIGGER, NO_TRIGGER),
        RunPostgres(STORAGE, DEFAULT_STORAGE),
    ]
