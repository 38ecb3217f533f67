"""Fill the hosts of the rows from before migration 0050, whose triggers have kept them since, and
make the indexes by which the rounds of a host find its rows."""

from django.db import migrations, models

FILL = """
UPDATE controlplane_branch b SET host_id = p.host_id
FROM controlplane_project p WHERE p.id = b.project_id AND b.host_id IS NULL;
UPDATE controlplane_endpoint e SET host_id = p.host_id
FROM controlplane_project p WHERE p.id = e.project_id AND e.host_id IS NULL;
UPDATE controlplane_historychain c SET host_id = b.host_id
FROM controlplane_branch b WHERE b.id = c.branch_id AND c.host_id IS NULL;
"""
# A foreign key of the project that is checked at the end would keep the indexes from being made.
CHECK_NOW = "SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED"
LIVING, DELETED = models.Q(deleted_at=None), models.Q(deleted_at__isnull=False)


def index(model: str, name: str, *fields: str, **rest: object) -> migrations.AddIndex:
    return migrations.AddIndex(model, models.Index(name=name, fields=fields, **rest))


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0050_hosts_of_rows")]

    operations = [
        migrations.RunSQL(FILL, ""),
        migrations.RunSQL(CHECK_NOW, ""),
        index("branch", "branches_of_a_host", "host", "id", condition=LIVING),
        index(
            "branch",
            "reset_branches",
            "host",
            "last_reset_at",
            condition=models.Q(last_reset_at__isnull=False),
        ),
        index(
            "branch",
            "branches_with_unread_catalog",
            "host",
            condition=models.Q(catalog_mark="unread", deleted_at=None),
        ),
        index("branch", "deleted_branches", "host", "deleted_at", condition=DELETED),
        index(
            "endpoint",
            "active_endpoints_of_a_host",
            "host",
            include=("autoscaling_limit_max_cu",),
            condition=models.Q(deleted_at=None, current_state="active"),
        ),
        index(
            "endpoint",
            "suspended_endpoints",
            "host",
            "suspended_at",
            condition=models.Q(deleted_at=None, current_state="idle"),
        ),
        index(
            "endpoint",
            "endpoints_to_check",
            "host",
            "check_due_at",
            condition=models.Q(deleted_at=None, disabled=False),
        ),
        index("endpoint", "deleted_endpoints", "host", "deleted_at", condition=DELETED),
        index("historychain", "spent_history_of_a_host", "host", "spent_at"),
        index("project", "deleted_projects", "host", "deleted_at", condition=DELETED),
        index(
            "project",
            "projects_without_outbound",
            "host",
            condition=models.Q(deleted_at=None, settings__block_outbound_connections=True),
        ),
        index(
            "project",
            "projects_with_second_host",
            "host",
            condition=models.Q(settings__durability="region"),
        ),
        migrations.RemoveIndex("historychain", "spent_history"),
        migrations.RemoveIndex("operation", "ended_starts"),
    ]
