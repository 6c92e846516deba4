from django.db import migrations

# ``finished_at`` and the rest tell apart what matters from a report of progress, which is no change of state.
TABLES = """
CREATE TABLE soak_history (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  actor text NOT NULL DEFAULT current_setting('application_name'),
  run_id bigint NOT NULL,
  key text,
  task text NOT NULL,
  old_status text,
  status text,
  lease_id uuid,
  lease_left float8,
  epoch int NOT NULL,
  attempt int NOT NULL,
  failures int NOT NULL,
  interruptions int NOT NULL,
  max_attempts int,
  on_lost text NOT NULL,
  run_after timestamptz,
  result jsonb,
  errors jsonb,
  rerun_of bigint
);
CREATE TABLE soak_order (key text PRIMARY KEY);
CREATE TABLE soak_effect (run_id bigint NOT NULL, epoch int NOT NULL);

CREATE FUNCTION soak_remember() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  r django_dispatch_run := coalesce(NEW, OLD);
BEGIN
  INSERT INTO soak_history (run_id, key, task, old_status, status, lease_id, lease_left, epoch, attempt, failures,
                            interruptions, max_attempts, on_lost, run_after, result, errors, rerun_of)
  VALUES (r.id, r.args->>0, r.task, CASE WHEN TG_OP <> 'INSERT' THEN OLD.status END,
          CASE WHEN TG_OP <> 'DELETE' THEN NEW.status END, r.lease_id,
          (SELECT extract(epoch FROM l.expires_at - clock_timestamp()) FROM django_dispatch_lease l
           WHERE l.id = r.lease_id),
          r.epoch, r.attempt, r.failures, r.interruptions, r.max_attempts, r.on_lost, r.run_after,
          CASE WHEN r.finished_at IS NOT NULL AND TG_OP = 'UPDATE' THEN r.result END,
          CASE WHEN TG_OP = 'UPDATE' THEN
            (SELECT jsonb_agg(jsonb_build_array(e->'attempt', e->'kind')) FROM jsonb_array_elements(r.errors) AS e) END,
          (r.meta->>'rerun_of')::bigint);
  RETURN NULL;
END $$;
CREATE TRIGGER soak_born AFTER INSERT OR DELETE ON django_dispatch_run
  FOR EACH ROW EXECUTE FUNCTION soak_remember();
CREATE TRIGGER soak_changed AFTER UPDATE ON django_dispatch_run FOR EACH ROW
  WHEN ((OLD.status, OLD.lease_id, OLD.epoch, OLD.attempt, OLD.failures, OLD.interruptions, OLD.result, OLD.errors,
         OLD.finished_at) IS DISTINCT FROM
        (NEW.status, NEW.lease_id, NEW.epoch, NEW.attempt, NEW.failures, NEW.interruptions, NEW.result, NEW.errors,
         NEW.finished_at))
  EXECUTE FUNCTION soak_remember();
"""
GONE = """
DROP TRIGGER soak_changed ON django_dispatch_run;
DROP TRIGGER soak_born ON django_dispatch_run;
DROP FUNCTION soak_remember;
DROP TABLE soak_history, soak_order, soak_effect;
"""


class Migration(migrations.Migration):
    dependencies = [("django_dispatch", "0002_postgres")]
    operations = [migrations.RunSQL(TABLES, GONE)]
