"""Lost hosts and moves between hosts, the hosts of rows, and metrics as rows of numbers.

Branches, endpoints and chains of history name the host of their project, and an endpoint when its
next availability check may be due. So a host's rounds find its rows by an index, however many rows
the other hosts of the region have. Triggers keep the hosts, because the previous release writes rows
too, during an upgrade. Migration 0051 fills the columns of the rows that exist.

Operations no longer belong to traces, and the tables of packed samples are not read any more. Their
column and tables stay for processes of the previous release. The samples are not carried over,
because SQL cannot read them.
"""

from pathlib import Path

from django.db import migrations
from django.db.models import (
    DO_NOTHING, BigIntegerField, BooleanField, CharField, CompositePrimaryKey, DateTimeField, FloatField,
    ForeignKey, IntegerField, JSONField, OneToOneField, SmallIntegerField, TextField,
)

from controlplane.migrations._tables import (
    Squashed, LIST, NO, NOW, TIME, columns, index, link, one_of, replaced, table,
)
from controlplane.models.log_receiver import new_receiver_id

ACTIONS = {
    "create_timeline": "Create a project with its primary branch",
    "create_branch": "Create a branch",
    "start_compute": "Start an endpoint",
    "suspend_compute": "Suspend an endpoint",
    "apply_config": "Apply a new configuration",
    "check_availability": "Check that data is sound and an endpoint starts",
    "delete_timeline": "Delete a branch's data",
    "delete_tenant": "Delete a project's data",
    "upgrade_project": "Move a project to another major version of Postgres",
    "restore_from_store": "Restore a branch of a lost host from the store",
    "move_project": "Move a project to another host of its region",
}
FORMATS = {
    "sql": "The statements that make it",
    "json": "Its tables, with their columns and constraints",
    "moment": "What the moment names",
    "logs": "The last lines of the branch's logs",
    "sessions": "The clients' sessions in the compute",
}
COUNTS = ("connections_active", "connections_idle", "connections_idle_in_transaction", "active_queries")
NUMBERS = (
    "memory_bytes", "database_bytes", "cpu_milliseconds", "cache_hits", "cache_misses", "rows_read",
    "rows_written", "deadlocks", "log_bytes", "wakes",
)


def host() -> ForeignKey:
    options = {"null": True, "editable": False, "db_constraint": False, "db_index": False}
    return link("Host", DO_NOTHING, **options)


class Migration(Squashed):
    replaces = replaced(
        "0047_lost_hosts", "0048_move_project", "0049_log_receivers", "0050_hosts_of_rows",
        "0057_locale_of_a_project", "0058_release_of_a_compute", "0059_ignore_heartbeats",
        "0061_restores_and_slugs", "0064_forget_traces", "0066_samples_as_rows",
        "0067_request_of_an_operation",
    )
    dependencies = [("controlplane", "0030_squashed_0046")]
    operations = [
        table(
            "LogReceiver",
            id=CharField(default=new_receiver_id, max_length=60, primary_key=True, serialize=False),
            created_at=NOW, attached_at=TIME, lost_at=TIME,
            stored_lsn=BigIntegerField(db_default=0, default=0),
            branch=link("Branch", related_name="log_receivers"),
            host=link("Host", related_name="log_receivers"),
        ),
        table(
            "EndpointSample",
            pk=CompositePrimaryKey(
                "endpoint_id", "at", blank=True, editable=False, primary_key=True, serialize=False
            ),
            endpoint=link("Endpoint", db_index=False), at=DateTimeField(),
            seconds=SmallIntegerField(), samples=SmallIntegerField(),
            **dict.fromkeys(COUNTS, IntegerField()), **dict.fromkeys(NUMBERS, BigIntegerField()),
            rules=[index("samples_by_age", "seconds", "at")],
        ),
        table(
            "LastSample",
            endpoint=link("Endpoint", kind=OneToOneField, primary_key=True, serialize=False),
            sampled_at=DateTimeField(), data=CharField(max_length=64), process=CharField(max_length=64),
            values=JSONField(), totals=JSONField(),
        ),
        *columns(
            "branch",
            host=host(), copied_by=LIST, lost_seconds=FloatField(null=True),
            restores_over=CharField(max_length=60, null=True),
        ),
        *columns(
            "endpoint",
            host=host(), check_due_at=TIME, ignore_heartbeats=NO,
            pg_release=CharField(db_default="", default="", max_length=32),
        ),
        *columns("historychain", host=host()),
        *columns(
            "host", lost_at=TIME, lost_state_id=CharField(db_default="", default="", max_length=36)
        ),
        *columns(
            "operation",
            kind=CharField(db_default="", default="", max_length=32),
            title=TextField(db_default="", default=""),
        ),
        *columns("project", locale=CharField(db_default="C", default="C", max_length=32)),
        *columns("snapshot", slug=CharField(max_length=63, null=True)),
        migrations.AlterField("schemareading", "format", CharField(max_length=8, choices=FORMATS)),
        migrations.AlterField("operation", "action", CharField(max_length=32, choices=ACTIONS)),
        migrations.RemoveConstraint("operation", "operation_action_is_known"),
        migrations.AddConstraint("operation", one_of("operation_action_is_known", "action", *ACTIONS)),
        migrations.RunSQL(Path(__file__).with_suffix(".sql").read_text()),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveField("operation", "traceparent"),
                migrations.DeleteModel("RecentMetrics"),
                migrations.DeleteModel("PastMetrics"),
            ],
        ),
    ]
