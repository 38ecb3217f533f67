from django.db import migrations, models

# The proxies keep what they know of endpoints until they hear of a change (migration 0003).
FORWARD = """
CREATE TRIGGER perch_account_disabled
    AFTER UPDATE OF disabled_at ON controlplane_account
    FOR EACH ROW WHEN (OLD.disabled_at IS DISTINCT FROM NEW.disabled_at)
    EXECUTE FUNCTION perch_notify_plan();
"""
BACKWARD = "DROP TRIGGER perch_account_disabled ON controlplane_account;"


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0036_secret_keys")]

    operations = [
        migrations.AddField("account", "disabled_at", models.DateTimeField(null=True)),
        migrations.AddField("account", "deleted_at", models.DateTimeField(null=True)),
        migrations.AddField("account", "recoverable_until", models.DateTimeField(null=True)),
        migrations.RunSQL(FORWARD, BACKWARD),
    ]
