"""Runs that wait at a limit: where, who holds a place, and the function that alone lets them pass."""

from importlib import import_module

from django.db import migrations, models

RunPostgres = import_module("django_dispatch.migrations.0002_postgres").RunPostgres

# Whoever inserts a run with a key, by whichever door: it waits for its admission. Rows of plain SQL that wait need not
# say where.
GATE = """
CREATE FUNCTION django_dispatch_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.status = 'READY' THEN
    NEW.status := 'BLOCKED';
  END IF;
  IF NEW.status = 'BLOCKED' THEN
    NEW.blocked_by := COALESCE(NEW.blocked_by, NEW.concurrency_key, 'queue:' || NEW.queue);
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER django_dispatch_gate BEFORE INSERT ON django_dispatch_run FOR EACH ROW
  WHEN (NEW.status = 'BLOCKED' OR (NEW.concurrency_key IS NOT NULL AND NEW.places = 0))
  EXECUTE FUNCTION django_dispatch_gate();
"""
NO_GATE = """
DROP TRIGGER django_dispatch_gate ON django_dispatch_run;
DROP FUNCTION django_dispatch_gate();
"""

# As before, and: rows of plain SQL that wait at a limit; of many keys at once, only that there are some.
WAKE = """
CREATE OR REPLACE FUNCTION django_dispatch_wake() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM inserted WHERE source = 'sql' AND status IN ('READY', 'BLOCKED'))
     AND pg_try_advisory_xact_lock(hashtext('django_dispatch'), hashtext(TG_TABLE_SCHEMA)) THEN
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
OLD_WAKE = (
    import_module("django_dispatch.migrations.0002_postgres")
    .TRIGGER.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
    .split("CREATE TRIGGER")[0]
)

# Admission. For each key: lock it, count who holds a place, give the free places to those that wait, best first.
#
# The lock comes in a statement before the count, and each statement of a volatile function sees what was committed
# when it began: whoever held the lock before has committed its admissions then. A single statement would count by a
# snapshot older than the lock that it waited for. Hence READ COMMITTED is demanded. The locks end with the transaction,
# and are taken in the order of their numbers, so that two calls cannot wait for each other. Rows that somebody holds
# are not waited for; where order counts, the first that waits is admitted or nobody is.
#
# The answer has rows of three kinds: a queue that has READY runs now; a key to be asked for next, or after so many
# seconds. What is read and written is bounded by the keys and their limits, not by how many wait.
ADMIT = """
CREATE FUNCTION django_dispatch_admit(keys text[], most int, queue_limits jsonb)
RETURNS TABLE (ready text, key text, seconds float8) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  one record;
  head record;
  moved record;
  is_queue boolean;
  concurrency int;
  amount int;
  period float8;
  room int;
  tokens_left float8;
  admitted int;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'Runs are admitted under READ COMMITTED only: another isolation level counts what is past.';
  END IF;
  FOR one IN SELECT DISTINCT hashtext(k) AS number FROM unnest(keys) AS k ORDER BY number LOOP
    PERFORM pg_advisory_xact_lock(hashtext('django_dispatch_admit ' || current_schema()), one.number);
  END LOOP;
  FOR one IN SELECT DISTINCT k AS key FROM unnest(keys) AS k ORDER BY key LOOP
    SELECT id, on_duplicate, concurrency_limit, rate_amount, rate_seconds INTO head FROM django_dispatch_run
    WHERE status = 'BLOCKED' AND blocked_by = one.key ORDER BY priority DESC, id LIMIT 1;
    CONTINUE WHEN NOT FOUND;
    is_queue := one.key LIKE 'queue:%';
    IF is_queue THEN
      concurrency := queue_limits #>> ARRAY[substr(one.key, 7), 'concurrency'];
      amount := queue_limits #>> ARRAY[substr(one.key, 7), 'rate_amount'];
      period := queue_limits #>> ARRAY[substr(one.key, 7), 'rate_seconds'];
      SELECT least(most, concurrency - count(*)) INTO room FROM (
        SELECT FROM django_dispatch_run
        WHERE queue = substr(one.key, 7) AND places = 2 AND status IN ('SCHEDULED', 'READY', 'BLOCKED', 'RUNNING')
        LIMIT COALESCE(concurrency, 0)) AS taken;
    ELSE
      amount := head.rate_amount;
      period := head.rate_seconds;
      -- A key of plain SQL that has no limit admits one at a time.
      concurrency := CASE WHEN amount IS NULL THEN COALESCE(head.concurrency_limit, 1) ELSE head.concurrency_limit END;
      SELECT least(most, concurrency - count(*)) INTO room FROM (
        SELECT FROM django_dispatch_run
        WHERE concurrency_key = one.key AND places > 0 AND status IN ('SCHEDULED', 'READY', 'BLOCKED', 'RUNNING')
        LIMIT COALESCE(concurrency, 0)) AS taken;
    END IF;
    CONTINUE WHEN room <= 0;
    IF amount IS NOT NULL THEN
      SELECT tokens + greatest(0, extract(epoch FROM clock_timestamp() - filled_at)) * amount / period
      INTO tokens_left FROM django_dispatch_bucket AS b WHERE b.key = one.key FOR UPDATE;
      tokens_left := least(amount, COALESCE(tokens_left, amount));
      room := least(room, floor(tokens_left));
    END IF;
    admitted := 0;
    FOR moved IN
      WITH picked AS MATERIALIZED (
        SELECT id FROM django_dispatch_run
        WHERE status = 'BLOCKED' AND blocked_by = one.key
          AND (is_queue OR head.on_duplicate NOT IN ('serial', 'queue_one') OR id = head.id)
        ORDER BY priority DESC, id LIMIT room FOR NO KEY UPDATE SKIP LOCKED
      ), passed AS (
        UPDATE django_dispatch_run AS r
        SET places = CASE WHEN is_queue THEN 2 ELSE 1 END,
            status = CASE WHEN is_queue OR NOT queue_limits ? r.queue THEN 'READY' ELSE 'BLOCKED' END,
            ready_at = clock_timestamp(),
            blocked_by = CASE WHEN NOT is_queue AND queue_limits ? r.queue THEN 'queue:' || r.queue END
        WHERE r.id = ANY(ARRAY(SELECT id FROM picked))
        RETURNING queue, blocked_by
      )
      SELECT queue, blocked_by, count(*) AS runs FROM passed GROUP BY queue, blocked_by
    LOOP
      admitted := admitted + moved.runs;
      ready := CASE WHEN moved.blocked_by IS NULL THEN moved.queue END;
      key := moved.blocked_by;
      seconds := NULL;
      RETURN NEXT;
    END LOOP;
    ready := NULL;
    key := one.key;
    IF amount IS NOT NULL THEN
      tokens_left := tokens_left - admitted;
      IF admitted > 0 THEN
        INSERT INTO django_dispatch_bucket AS b (key, tokens, filled_at)
        VALUES (one.key, tokens_left, clock_timestamp())
        ON CONFLICT ON CONSTRAINT django_dispatch_bucket_pkey
        DO UPDATE SET tokens = excluded.tokens, filled_at = excluded.filled_at;
      END IF;
      IF tokens_left < 1 THEN
        seconds := (1 - tokens_left) * period / amount;
        RETURN NEXT;
        CONTINUE;
      END IF;
    END IF;
    IF admitted = most THEN
      seconds := NULL;
      RETURN NEXT;
    END IF;
  END LOOP;
END $$;
"""
NO_ADMIT = "DROP FUNCTION django_dispatch_admit(text[], int, jsonb);"


class Migration(migrations.Migration):
    dependencies = [
        ("django_dispatch", "0006_retries"),
    ]

    operations = [
        migrations.CreateModel(
            name="Bucket",
            fields=[
                ("key", models.CharField(max_length=255, primary_key=True, serialize=False, verbose_name="key")),
                ("tokens", models.FloatField(verbose_name="tokens")),
                ("filled_at", models.DateTimeField(verbose_name="filled at")),
            ],
            options={
                "verbose_name": "bucket",
                "verbose_name_plural": "buckets",
            },
        ),
        migrations.RemoveIndex(
            model_name="run",
            name="dispatch_run_concurrency",
        ),
        migrations.AddField(
            model_name="run",
            name="blocked_by",
            field=models.CharField(blank=True, max_length=255, null=True, verbose_name="blocked by"),
        ),
        migrations.AddField(
            model_name="run",
            name="concurrency_limit",
            field=models.PositiveIntegerField(blank=True, null=True, verbose_name="concurrency limit"),
        ),
        migrations.AddField(
            model_name="run",
            name="on_duplicate",
            field=models.CharField(
                choices=[
                    ("parallel", "run beside it"),
                    ("discard", "is not recorded"),
                    ("serial", "runs after it"),
                    ("queue_one", "runs after it, if none waits yet"),
                    ("replace", "takes the place of the one that waits"),
                ],
                db_default="parallel",
                max_length=9,
                verbose_name="on duplicate",
            ),
        ),
        migrations.AddField(
            model_name="run",
            name="places",
            field=models.PositiveSmallIntegerField(db_default=0, verbose_name="places"),
        ),
        migrations.AddField(
            model_name="run",
            name="rate_amount",
            field=models.PositiveIntegerField(blank=True, null=True, verbose_name="rate amount"),
        ),
        migrations.AddField(
            model_name="run",
            name="rate_seconds",
            field=models.FloatField(blank=True, null=True, verbose_name="rate seconds"),
        ),
        migrations.AddField(
            model_name="run",
            name="unique_until",
            field=models.DateTimeField(blank=True, null=True, verbose_name="unique until"),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                models.F("blocked_by"),
                models.OrderBy(models.F("priority"), descending=True),
                models.F("id"),
                condition=models.Q(("status", "BLOCKED")),
                name="dispatch_run_blocked",
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(
                    ("concurrency_key__isnull", False),
                    ("places__gt", 0),
                    ("status__in", ["SCHEDULED", "READY", "BLOCKED", "RUNNING"]),
                ),
                fields=["concurrency_key"],
                name="dispatch_run_key_places",
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("places", 2), ("status__in", ["SCHEDULED", "READY", "BLOCKED", "RUNNING"])),
                fields=["queue"],
                name="dispatch_run_queue_places",
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("concurrency_key__isnull", True),
                    ("places__gt", 0),
                    models.Q(("status__in", ["READY", "RUNNING"]), _negated=True),
                    _connector="OR",
                ),
                name="dispatch_run_ready_has_place",
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("status", "BLOCKED"), _negated=True),
                    models.Q(("blocked_by__isnull", False), models.Q(("blocked_by", ""), _negated=True)),
                    _connector="OR",
                ),
                name="dispatch_run_blocked_by_something",
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("concurrency_key__isnull", True),
                    models.Q(
                        models.Q(("concurrency_key", ""), _negated=True),
                        models.Q(("concurrency_key__startswith", "queue:"), _negated=True),
                    ),
                    _connector="OR",
                ),
                name="dispatch_run_key_is_no_queue",
            ),
        ),
        RunPostgres(GATE, NO_GATE),
        RunPostgres(WAKE, OLD_WAKE),
        RunPostgres(ADMIT, NO_ADMIT),
    ]
