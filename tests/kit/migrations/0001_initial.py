from django.db import migrations


class Migration(migrations.Migration):
    operations = [
        migrations.RunSQL(
            """
            CREATE TABLE kit_ledger (
              id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
              run_id bigint NOT NULL,
              epoch int NOT NULL,
              attempt int NOT NULL,
              pid int NOT NULL,
              backend_pid int,
              started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
              seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
              ended_at timestamptz,
              note text NOT NULL
            )
            """,
            "DROP TABLE kit_ledger",
        )
    ]
