"""Runs of fair keys take turns in the line in which they wait, at a limit or in their queue."""

from importlib import import_module

from django.db import migrations, models
from django.db.models.functions import Coalesce

RunPostgres = import_module("django_dispatch.migrations.0002_postgres").RunPostgres
ADMIT = import_module("django_dispatch.migrations.0007_limits").ADMIT

# The turn of a run that comes into a line. The runs of one key have each a turn of their own, two halves apart. One of
# whose key none waits comes after the next turn, and before the one that the key of that has then: so it waits for one
# or two runs of each other key, however many those have, and never comes before a run that is next. Turns are counted
# from the id of who found the line empty. No lock: keys in transactions that do not see each other may share turns.
#
# Each look reads one entry of an index; what the planner knows of the table may be old, so it is given no choice.
TURN = """
CREATE FUNCTION django_dispatch_turn(line text, level smallint, key text, run_id bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
  waiting record;
BEGIN
  SELECT fair_key, turn INTO waiting FROM django_dispatch_run
  WHERE COALESCE(blocked_by, queue) = line AND priority = level AND fair_key <= key
    AND turn IS NOT NULL AND status IN ('READY', 'BLOCKED')
  ORDER BY fair_key DESC, turn DESC LIMIT 1;
  IF waiting.fair_key = key THEN
    RETURN waiting.turn + 2;
  END IF;
  SELECT turn INTO waiting FROM django_dispatch_run
  WHERE COALESCE(blocked_by, queue) = line AND priority = level
    AND turn IS NOT NULL AND status IN ('READY', 'BLOCKED')
  ORDER BY turn LIMIT 1;
  RETURN CASE WHEN FOUND THEN waiting.turn + 1 + waiting.turn % 2 ELSE run_id * 2 END;
END $$;
"""
NO_TURN = "DROP FUNCTION django_dispatch_turn(text, smallint, text, bigint);"

# Whoever inserts a run with a fair key, by whichever door. After the gate, by its name: that says in which line it is.
# Where order counts, ids are the order.
LINE_UP = """
CREATE FUNCTION django_dispatch_line_up() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.turn := CASE WHEN NEW.status = 'READY' OR NEW.blocked_by IS DISTINCT FROM NEW.concurrency_key
                     OR NEW.on_duplicate NOT IN ('serial', 'queue_one')
              THEN django_dispatch_turn(COALESCE(NEW.blocked_by, NEW.queue), NEW.priority, NEW.fair_key, NEW.id) END;
  RETURN NEW;
END $$;
CREATE TRIGGER django_dispatch_line_up BEFORE INSERT ON django_dispatch_run FOR EACH ROW
  WHEN (NEW.fair_key IS NOT NULL AND NEW.status IN ('READY', 'BLOCKED'))
  EXECUTE FUNCTION django_dispatch_line_up();
"""
NO_LINE_UP = """
DROP TRIGGER django_dispatch_line_up ON django_dispatch_run;
DROP FUNCTION django_dispatch_line_up();
"""

# As before, and: by turn. Who passes its key has had its turn there; it comes into its queue's line as one of whose key
# none waits, for it holds a place meanwhile. In a queue with a limit there is one order, before the limit and after.
FAIR_ADMIT = (
    ADMIT.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
    .replace("ORDER BY priority DESC, id LIMIT", "ORDER BY priority DESC, COALESCE(turn, id * 2) LIMIT")
    .replace(
        "            ready_at = clock_timestamp(),\n",
        """            turn = CASE WHEN r.fair_key IS NULL OR is_queue THEN r.turn ELSE django_dispatch_turn(
              CASE WHEN queue_limits ? r.queue THEN 'queue:' ELSE '' END || r.queue, r.priority, NULL, r.id) END,
            ready_at = clock_timestamp(),
""",
    )
)
OLD_ADMIT = ADMIT.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")

PLACE = Coalesce(models.F("turn"), models.F("id") * 2)
LINE = Coalesce(models.F("blocked_by"), models.F("queue"))
WAITS_ITS_TURN = models.Q(("status__in", ["READY", "BLOCKED"]), ("turn__isnull", False))


class Migration(migrations.Migration):
    dependencies = [("django_dispatch", "0008_queues")]

    operations = [
        migrations.AddField(
            model_name="run",
            name="fair_key",
            field=models.CharField(blank=True, max_length=255, null=True, verbose_name="fair key"),
        ),
        migrations.AddField(
            model_name="run",
            name="turn",
            field=models.BigIntegerField(blank=True, editable=False, null=True, verbose_name="turn"),
        ),
        migrations.RemoveIndex(model_name="run", name="dispatch_run_claim"),
        migrations.RemoveIndex(model_name="run", name="dispatch_run_blocked"),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                models.F("queue"),
                models.OrderBy(models.F("priority"), descending=True),
                PLACE,
                condition=models.Q(("status", "READY")),
                name="dispatch_run_claim",
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                models.F("blocked_by"),
                models.OrderBy(models.F("priority"), descending=True),
                PLACE,
                condition=models.Q(("status", "BLOCKED")),
                name="dispatch_run_blocked",
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                LINE, models.F("priority"), models.F("turn"), condition=WAITS_ITS_TURN, name="dispatch_run_turns"
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                LINE,
                models.F("priority"),
                models.F("fair_key"),
                models.F("turn"),
                condition=WAITS_ITS_TURN,
                name="dispatch_run_fair",
            ),
        ),
        RunPostgres(TURN, NO_TURN),
        RunPostgres(LINE_UP, NO_LINE_UP),
        RunPostgres(FAIR_ADMIT, OLD_ADMIT),
    ]
