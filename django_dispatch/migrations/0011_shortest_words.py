"""What most runs are is written as the shortest text there is."""

from django.db import migrations, models

WORDS = {"on_duplicate": "parallel", "on_lost": "requeue"}


def shorten(apps, schema_editor):
    runs = apps.get_model("django_dispatch", "Run").objects.using(schema_editor.connection.alias)
    for column, word in WORDS.items():
        runs.filter(**{column: word}).update(**{column: ""})


def lengthen(apps, schema_editor):
    runs = apps.get_model("django_dispatch", "Run").objects.using(schema_editor.connection.alias)
    for column, word in WORDS.items():
        runs.filter(**{column: ""}).update(**{column: word})


class Migration(migrations.Migration):
    dependencies = [("django_dispatch", "0010_waiters")]

    operations = [
        migrations.AlterField(
            model_name="run",
            name="on_duplicate",
            field=models.CharField(
                blank=True,
                choices=[
                    ("", "run beside it"),
                    ("discard", "is not recorded"),
                    ("serial", "runs after it"),
                    ("queue_one", "runs after it, if none waits yet"),
                    ("replace", "takes the place of the one that waits"),
                ],
                db_default="",
                max_length=9,
                verbose_name="on duplicate",
            ),
        ),
        migrations.AlterField(
            model_name="run",
            name="on_lost",
            field=models.CharField(
                blank=True,
                choices=[("", "run again"), ("fail", "fail, at most once")],
                db_default="",
                max_length=7,
                verbose_name="on lost",
            ),
        ),
        migrations.RunPython(shorten, lengthen),
    ]
