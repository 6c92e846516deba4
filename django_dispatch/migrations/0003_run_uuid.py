"""Runs that come as messages: each names its uuid, which makes one run however many dispatchers hear of it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("django_dispatch", "0002_postgres")]

    operations = [
        migrations.AddField(
            model_name="run",
            name="uuid",
            field=models.CharField(blank=True, max_length=255, null=True, verbose_name="message uuid"),
        ),
        migrations.AlterField(
            model_name="run",
            name="source",
            field=models.CharField(
                choices=[("app", "application"), ("sql", "plain SQL"), ("notify", "message")],
                db_default="sql",
                max_length=10,
                verbose_name="source",
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.UniqueConstraint(
                condition=models.Q(("uuid__isnull", False)), fields=("uuid",), name="dispatch_run_uuid"
            ),
        ),
    ]
