from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0034_history_store")]

    operations = [
        migrations.AddField(
            "region", "proxy_problems", models.JSONField(default=list, db_default=models.Value([], models.JSONField()))
        ),
        migrations.AddField(
            "region", "quality", models.JSONField(default=dict, db_default=models.Value({}, models.JSONField()))
        ),
        migrations.AddField("region", "backups_since", models.DateTimeField(null=True)),
        migrations.AddField("region", "backup_taken_at", models.DateTimeField(null=True)),
        migrations.AddField("region", "backup_verified_at", models.DateTimeField(null=True)),
        migrations.AddIndex(
            "operation",
            models.Index(
                name="ended_starts",
                fields=["updated_at"],
                condition=models.Q(action="start_compute", status__in=["finished", "failed"]),
            ),
        ),
    ]
