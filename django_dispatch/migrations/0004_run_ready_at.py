"""Since when a run can be claimed, so that nobody waits unseen. Adds no default: no row is written."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("django_dispatch", "0003_run_uuid")]

    operations = [
        migrations.AddField(
            model_name="run",
            name="ready_at",
            field=models.DateTimeField(blank=True, null=True, verbose_name="ready at"),
        ),
    ]
