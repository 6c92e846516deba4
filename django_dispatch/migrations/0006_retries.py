"""Runs that expire when they were not started in time."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("django_dispatch", "0005_schedules")]

    operations = [
        migrations.AddField(
            model_name="run",
            name="expires_at",
            field=models.DateTimeField(blank=True, null=True, verbose_name="expires at"),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(
                    ("attempt", 0),
                    ("expires_at__isnull", False),
                    ("status__in", ["SCHEDULED", "READY", "BLOCKED"]),
                ),
                fields=["expires_at"],
                name="dispatch_run_expire",
            ),
        ),
    ]
