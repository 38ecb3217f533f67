"""Add the setting of endpoints by which heartbeats are not activity."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0058_release_of_a_compute")]

    operations = [
        migrations.AddField(
            "endpoint", "ignore_heartbeats", models.BooleanField(default=False, db_default=False)
        ),
        migrations.AlterField(
            "schemareading",
            "format",
            models.CharField(
                max_length=8,
                choices=[
                    ("sql", "The statements that make it"),
                    ("json", "Its tables, with their columns and constraints"),
                    ("moment", "What the moment names"),
                    ("logs", "The last lines of the branch's logs"),
                    ("sessions", "The clients' sessions in the compute"),
                ],
            ),
        ),
    ]
