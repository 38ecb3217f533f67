"""The branch that a restored branch is to replace, and slugs of snapshots."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0059_ignore_heartbeats")]

    operations = [
        migrations.AddField("branch", "restores_over", models.CharField(max_length=60, null=True)),
        migrations.AddField("snapshot", "slug", models.CharField(max_length=63, null=True)),
        migrations.AddConstraint(
            "snapshot",
            models.UniqueConstraint(
                fields=["project", "slug"],
                condition=models.Q(slug__isnull=False),
                name="snapshot_slug_is_unique",
            ),
        ),
    ]
