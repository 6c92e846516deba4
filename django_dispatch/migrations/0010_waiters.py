"""Dispatchers that say whether they wait for READY runs, and enqueues that notify only while one does."""

from importlib import import_module

import django.db.models.deletion
from django.db import migrations, models

RunPostgres = import_module("django_dispatch.migrations.0002_postgres").RunPostgres

# Few rows, each written a few times a second at most, and read with every enqueue.
STORAGE = """
ALTER TABLE django_dispatch_waiter SET (
  fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
"""
DEFAULT_STORAGE = """
ALTER TABLE django_dispatch_waiter RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold);
"""

# Whether some dispatcher waits for runs of this queue; null: of any. Where none has a row, all want every wakeup.
#
# It is asked in a transaction that has written its run, and each statement of a volatile function sees what was
# committed when it began, not when the INSERT did. So whoever does not see that a dispatcher waits has a transaction
# number already, by which the dispatcher waits for its end: see Store.mark(). Under another isolation level it may see
# what was true before it had one, and then it notifies in any case.
IS_AWAITED = r"""
CREATE FUNCTION django_dispatch_is_awaited(wanted text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RETURN current_setting('transaction_isolation') <> 'read committed'
    OR NOT EXISTS (SELECT FROM django_dispatch_waiter)
    OR EXISTS (
      SELECT FROM django_dispatch_waiter AS w
      WHERE w.is_waiting AND (wanted IS NULL OR CASE WHEN starts_with(wanted, 'lease:')
        THEN wanted = 'lease:' || w.lease_id
        ELSE (
          SELECT COALESCE(bool_or(wanted LIKE p.meant) FILTER (WHERE NOT p.is_exclude), true)
            AND NOT COALESCE(bool_or(wanted LIKE p.meant) FILTER (WHERE p.is_exclude), false)
          FROM (
            SELECT starts_with(q, '-') AS is_exclude,
              replace(regexp_replace(regexp_replace(q, '^-', ''), '([\\%_])', '\\\1', 'g'), '*', '%') AS meant
            FROM jsonb_array_elements_text(w.queues) AS q) AS p)
        END));
END $$;
"""
NO_IS_AWAITED = "DROP FUNCTION django_dispatch_is_awaited(text);"

# As before, but whoever gets the gate notifies only if it is awaited. The look comes after the gate, which most do not
# get when many commit at once: for all it would cost more than the notification of one. Who does not get the gate may
# be let down by one who did before somebody waited: hence dispatchers wait for two marks.
#
# Who cannot see whether it is awaited notifies in any case: who may not read that table or call that function, or
# inserts into one that is not on its search path.
WAKE = """
CREATE OR REPLACE FUNCTION django_dispatch_wake() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM inserted WHERE source = 'sql' AND status IN ('READY', 'BLOCKED'))
     AND pg_try_advisory_xact_lock(hashtext('django_dispatch'), hashtext(TG_TABLE_SCHEMA)) THEN
    IF has_table_privilege(to_regclass('django_dispatch_waiter'), 'SELECT')
       AND to_regclass('django_dispatch_waiter')
         = to_regclass(quote_ident(TG_TABLE_SCHEMA) || '.django_dispatch_waiter') THEN
      IF EXISTS (SELECT FROM django_dispatch_waiter)
         AND has_function_privilege('django_dispatch_is_awaited(text)', 'EXECUTE') THEN
        IF NOT EXISTS (
          SELECT FROM (
            SELECT DISTINCT CASE status WHEN 'READY' THEN queue END AS wanted FROM inserted
            WHERE source = 'sql' AND status IN ('READY', 'BLOCKED')) AS i
          WHERE django_dispatch_is_awaited(i.wanted)) THEN
          RETURN NULL;
        END IF;
      END IF;
    END IF;
    PERFORM pg_notify('django_dispatch', i.payload) FROM (
      SELECT DISTINCT 'ready:' || queue AS payload FROM inserted WHERE source = 'sql' AND status = 'READY'
      UNION ALL
      SELECT DISTINCT 'blocked:' || CASE
        WHEN (SELECT count(DISTINCT blocked_by) FROM inserted WHERE source = 'sql' AND status = 'BLOCKED') > 20
        THEN 'queue:' ELSE blocked_by END
      FROM inserted WHERE source = 'sql' AND status = 'BLOCKED') i;
  END IF;
  RETURN NULL;
END $$;
"""
OLD_WAKE = import_module("django_dispatch.migrations.0007_limits").WAKE


class Migration(migrations.Migration):
    dependencies = [("django_dispatch", "0009_fair_key")]

    operations = [
        migrations.CreateModel(
            name="Waiter",
            fields=[
                (
                    "lease",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to="django_dispatch.lease",
                        verbose_name="lease",
                    ),
                ),
                ("queues", models.JSONField(db_default=[], default=list, verbose_name="queues")),
                ("is_waiting", models.BooleanField(db_default=False, verbose_name="is waiting")),
            ],
            options={"verbose_name": "waiter", "verbose_name_plural": "waiters"},
        ),
        RunPostgres(STORAGE, DEFAULT_STORAGE),
        RunPostgres(IS_AWAITED, NO_IS_AWAITED),
        RunPostgres(WAKE, OLD_WAKE),
    ]
