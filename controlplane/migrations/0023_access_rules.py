"""Tell the proxies when others than before may connect, and keep what their clients are to trust.

The proxies keep what they know of endpoints until they hear of a change (migration 0003); from
where clients may come is in the project's settings, and may depend on whether the branch is
protected.
"""

from django.db import migrations, models

FORWARD = """
CREATE FUNCTION perch_notify_project_settings() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('perch_endpoints', id) FROM controlplane_endpoint
        WHERE project_id = NEW.id AND deleted_at IS NULL;
    RETURN NULL;
END $$;

CREATE TRIGGER perch_project_settings_changed
    AFTER UPDATE OF settings ON controlplane_project
    FOR EACH ROW WHEN (OLD.settings IS DISTINCT FROM NEW.settings)
    EXECUTE FUNCTION perch_notify_project_settings();

CREATE FUNCTION perch_notify_branch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('perch_endpoints', id) FROM controlplane_endpoint
        WHERE branch_id = NEW.id AND deleted_at IS NULL;
    RETURN NULL;
END $$;

CREATE TRIGGER perch_branch_protected
    AFTER UPDATE OF protected ON controlplane_branch
    FOR EACH ROW WHEN (OLD.protected IS DISTINCT FROM NEW.protected)
    EXECUTE FUNCTION perch_notify_branch();
"""
BACKWARD = """
DROP TRIGGER perch_project_settings_changed ON controlplane_project;
DROP TRIGGER perch_branch_protected ON controlplane_branch;
DROP FUNCTION perch_notify_project_settings();
DROP FUNCTION perch_notify_branch();
"""


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0022_catalog_by_sql")]

    operations = [
        migrations.AddField(
            model_name="region",
            name="certificate_authority",
            field=models.TextField(db_default="", default=""),
        ),
        migrations.RunSQL(FORWARD, BACKWARD),
    ]
