"""Fill the hosts of the rows from before migration 0047, whose triggers have kept them since, repair
times that no program can read, and make the indexes by which the rounds of a host find its rows."""

from django.db import migrations
from django.db.models import Q

from controlplane.migrations._tables import DELETED, LIVING, Squashed, index, replaced

FILL = """
UPDATE controlplane_branch b SET host_id = p.host_id
FROM controlplane_project p WHERE p.id = b.project_id AND b.host_id IS NULL;
UPDATE controlplane_endpoint e SET host_id = p.host_id
FROM controlplane_project p WHERE p.id = e.project_id AND e.host_id IS NULL;
UPDATE controlplane_historychain c SET host_id = b.host_id
FROM controlplane_branch b WHERE b.id = c.branch_id AND c.host_id IS NULL;
UPDATE controlplane_endpoint SET last_active = now()
WHERE last_active NOT BETWEEN '2000-01-01Z' AND '9000-01-01Z';
"""
# A foreign key of the project that is checked at the end would keep the indexes from being made.
CHECK_NOW = "SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED"
INDEXES = {
    "branch": [
        index("branches_of_a_host", "host", "id", **LIVING),
        index("reset_branches", "host", "last_reset_at", last_reset_at__isnull=False),
        index("branches_with_unread_catalog", "host", catalog_mark="unread", deleted_at=None),
        index("deleted_branches", "host", "deleted_at", **DELETED),
    ],
    "endpoint": [
        index(
            "active_endpoints_of_a_host", "host",
            deleted_at=None, current_state="active", include=("autoscaling_limit_max_cu",),
        ),
        index("suspended_endpoints", "host", "suspended_at", deleted_at=None, current_state="idle"),
        index("endpoints_to_check", "host", "check_due_at", deleted_at=None, disabled=False),
        index("deleted_endpoints", "host", "deleted_at", **DELETED),
    ],
    "historychain": [index("spent_history_of_a_host", "host", "spent_at")],
    "project": [
        index("deleted_projects", "host", "deleted_at", **DELETED),
        index(
            "projects_without_outbound", "host",
            deleted_at=None, settings__block_outbound_connections=True,
        ),
        index("projects_with_second_host", "host", settings__durability="region"),
    ],
}


class Migration(Squashed):
    replaces = replaced("0051_rows_of_a_host", "0068_readable_times")
    dependencies = [("controlplane", "0047_squashed_0067")]
    operations = [
        migrations.RunSQL(FILL),
        migrations.RunSQL(CHECK_NOW),
        *(migrations.AddIndex(table, one) for table, made in INDEXES.items() for one in made),
        migrations.RemoveIndex("historychain", "spent_history"),
        migrations.RemoveIndex("operation", "ended_starts"),
    ]
