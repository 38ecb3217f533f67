"""Where the proxies of a region's hosts reach each other, and by which certificates they recognize
each other. Tell the proxies when a project has moved to another host: they keep what they know of
endpoints until they hear of a change (migration 0003).
"""

from django.db import migrations, models

FORWARD = """
CREATE TRIGGER perch_project_host_changed
    AFTER UPDATE OF host_id ON controlplane_project
    FOR EACH ROW WHEN (OLD.host_id IS DISTINCT FROM NEW.host_id)
    EXECUTE FUNCTION perch_notify_project_settings();
"""
BACKWARD = "DROP TRIGGER perch_project_host_changed ON controlplane_project"


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0045_host_invitations")]

    operations = [
        migrations.AddField(
            "host", "peer_address", models.CharField(db_default="", default="", max_length=253)
        ),
        migrations.AddField(
            "host", "peer_port", models.PositiveIntegerField(db_default=5432, default=5432)
        ),
        migrations.AddField(
            "host", "peer_certificate", models.TextField(db_default="", default="")
        ),
        migrations.RunSQL(FORWARD, BACKWARD),
    ]
