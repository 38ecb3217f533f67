"""Rows of numbers for the metrics of endpoints. The tables of packed samples stay for processes of
the previous release; their rows are not carried over, because SQL cannot read them."""

import django.db.models.deletion
from django.db import migrations, models

SMALL = ("seconds", "samples")
COUNTS = (
    "connections_active",
    "connections_idle",
    "connections_idle_in_transaction",
    "active_queries",
)
NUMBERS = (
    "memory_bytes",
    "database_bytes",
    "cpu_milliseconds",
    "cache_hits",
    "cache_misses",
    "rows_read",
    "rows_written",
    "deadlocks",
    "log_bytes",
    "wakes",
)
OF_ENDPOINT = {
    "on_delete": django.db.models.deletion.CASCADE,
    "related_name": "+",
    "to": "controlplane.endpoint",
}

# A row of the last samples changes every minute. Unlogged, it costs no write-ahead log, and where a
# page has room, its new version needs no new entry in the index.
OFTEN_CHANGED = """
ALTER TABLE controlplane_lastsample SET UNLOGGED;
ALTER TABLE controlplane_lastsample SET (fillfactor = 70);
"""
# This release deletes endpoints without these rows.
KEPT_FOR_THE_PREVIOUS_RELEASE = """
ALTER TABLE controlplane_recentmetrics
    DROP CONSTRAINT controlplane_recentm_endpoint_id_5afff853_fk_controlpl;
ALTER TABLE controlplane_pastmetrics
    DROP CONSTRAINT controlplane_pastmet_endpoint_id_6e4139b2_fk_controlpl;
"""


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0064_forget_traces")]

    operations = [
        migrations.CreateModel(
            name="EndpointSample",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "endpoint_id",
                        "at",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("endpoint", models.ForeignKey(**OF_ENDPOINT, db_index=False)),
                ("at", models.DateTimeField()),
                *((name, models.SmallIntegerField()) for name in SMALL),
                *((name, models.IntegerField()) for name in COUNTS),
                *((name, models.BigIntegerField()) for name in NUMBERS),
            ],
            options={
                "indexes": [models.Index(fields=["seconds", "at"], name="samples_by_age")],
            },
        ),
        migrations.CreateModel(
            name="LastSample",
            fields=[
                (
                    "endpoint",
                    models.OneToOneField(**OF_ENDPOINT, primary_key=True, serialize=False),
                ),
                ("sampled_at", models.DateTimeField()),
                ("data", models.CharField(max_length=64)),
                ("process", models.CharField(max_length=64)),
                ("values", models.JSONField()),
                ("totals", models.JSONField()),
            ],
        ),
        migrations.RunSQL(OFTEN_CHANGED, migrations.RunSQL.noop),
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(KEPT_FOR_THE_PREVIOUS_RELEASE, migrations.RunSQL.noop)
            ],
            state_operations=[
                migrations.DeleteModel("RecentMetrics"),
                migrations.DeleteModel("PastMetrics"),
            ],
        ),
    ]
