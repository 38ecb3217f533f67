"""Rows for the metrics of endpoints, and the count of an endpoint's starts."""

import django.db.models.deletion
from django.db import migrations, models

ENDPOINT = {
    "db_index": False,
    "on_delete": django.db.models.deletion.CASCADE,
    "related_name": "+",
    "to": "controlplane.endpoint",
}
KEY = models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")

# A row of recent metrics changes every minute. Unlogged, it costs no write-ahead log, and where a
# page has room, its new version needs no new entries in the indexes.
OFTEN_CHANGED = """
ALTER TABLE controlplane_recentmetrics SET UNLOGGED;
ALTER TABLE controlplane_recentmetrics SET (fillfactor = 70);
"""


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0039_history_usage")]

    operations = [
        migrations.AddField("endpoint", "starts", models.BigIntegerField(db_default=0, default=0)),
        migrations.CreateModel(
            name="RecentMetrics",
            fields=[
                ("id", KEY),
                ("endpoint", models.ForeignKey(**ENDPOINT)),
                ("start", models.DateTimeField()),
                ("sampled_at", models.DateTimeField()),
                ("data", models.CharField(max_length=64)),
                ("process", models.CharField(max_length=64)),
                ("state", models.BinaryField()),
                ("samples", models.BinaryField()),
                ("is_packed", models.BooleanField(db_default=False, default=False)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("endpoint", "start"), name="one_row_of_recent_metrics"
                    )
                ]
            },
        ),
        migrations.CreateModel(
            name="PastMetrics",
            fields=[
                ("id", KEY),
                ("endpoint", models.ForeignKey(**ENDPOINT)),
                ("start", models.DateTimeField()),
                ("block", models.BinaryField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("endpoint", "start"), name="one_row_of_past_metrics"
                    )
                ]
            },
        ),
        migrations.RunSQL(OFTEN_CHANGED, migrations.RunSQL.noop),
    ]
