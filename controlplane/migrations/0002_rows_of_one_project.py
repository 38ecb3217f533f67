"""An endpoint's branch, and a branch's parent, are of the same project: the database says so."""

from django.db import migrations

ENDPOINTS = """
ALTER TABLE controlplane_endpoint ADD CONSTRAINT endpoint_and_branch_share_a_project
    FOREIGN KEY (branch_id, project_id) REFERENCES controlplane_branch (id, project_id)
    DEFERRABLE INITIALLY DEFERRED
"""
BRANCHES = """
ALTER TABLE controlplane_branch ADD CONSTRAINT branch_and_parent_share_a_project
    FOREIGN KEY (parent_id, project_id) REFERENCES controlplane_branch (id, project_id)
    DEFERRABLE INITIALLY DEFERRED
"""


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0001_initial")]

    operations = [
        migrations.RunSQL(
            ENDPOINTS,
            "ALTER TABLE controlplane_endpoint DROP CONSTRAINT endpoint_and_branch_share_a_project",
        ),
        migrations.RunSQL(
            BRANCHES,
            "ALTER TABLE controlplane_branch DROP CONSTRAINT branch_and_parent_share_a_project",
        ),
    ]
