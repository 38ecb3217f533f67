"""Masked branches: their rules, the proof that they are masked, and the secret of a project that
masked values depend on."""

import django.db.models.deletion
from django.db import migrations, models

from controlplane import clock


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0071_branches_left")]

    operations = [
        migrations.AddField(
            "project", "masking_secret", models.TextField(default="", db_default="")
        ),
        migrations.AddField("branch", "masked_as", models.CharField(max_length=60, null=True)),
        migrations.AddIndex(
            "branch",
            models.Index(
                fields=["masked_as"],
                name="masked_branches",
                condition=models.Q(masked_as__isnull=False),
            ),
        ),
        migrations.CreateModel(
            name="Masking",
            fields=[
                ("id", models.CharField(max_length=60, primary_key=True, serialize=False)),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="maskings",
                        to="controlplane.project",
                    ),
                ),
                ("rules", models.JSONField(default=list)),
                ("attestation", models.JSONField(null=True)),
                ("created_at", models.DateTimeField(default=clock.now)),
                ("updated_at", models.DateTimeField(default=clock.now)),
            ],
        ),
    ]
