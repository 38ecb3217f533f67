"""Tell whoever listens that an endpoint, its operations or its roles changed.

The proxies keep what they know of endpoints only while they hear of its changes, and wake
their waiting clients by it. A trigger cannot be forgotten by any writer.
"""

from django.db import migrations

FORWARD = """
CREATE FUNCTION perch_notify_endpoint() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('perch_endpoints', NEW.id);
    RETURN NULL;
END $$;

CREATE TRIGGER perch_endpoint_changed
    AFTER INSERT OR UPDATE OF current_state, branch_id, disabled, pooler_enabled, deleted_at
    ON controlplane_endpoint
    FOR EACH ROW EXECUTE FUNCTION perch_notify_endpoint();

CREATE FUNCTION perch_notify_operation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('perch_endpoints', NEW.endpoint_id);
    RETURN NULL;
END $$;

CREATE TRIGGER perch_operation_changed
    AFTER INSERT OR UPDATE OF status ON controlplane_operation
    FOR EACH ROW WHEN (NEW.endpoint_id IS NOT NULL)
    EXECUTE FUNCTION perch_notify_operation();

CREATE FUNCTION perch_notify_role() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('perch_endpoints', id) FROM controlplane_endpoint
        WHERE branch_id = NEW.branch_id AND deleted_at IS NULL;
    RETURN NULL;
END $$;

CREATE TRIGGER perch_role_changed
    AFTER INSERT OR UPDATE ON controlplane_role
    FOR EACH ROW EXECUTE FUNCTION perch_notify_role();
"""
BACKWARD = """
DROP TRIGGER perch_endpoint_changed ON controlplane_endpoint;
DROP TRIGGER perch_operation_changed ON controlplane_operation;
DROP TRIGGER perch_role_changed ON controlplane_role;
DROP FUNCTION perch_notify_endpoint();
DROP FUNCTION perch_notify_operation();
DROP FUNCTION perch_notify_role();
"""


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0002_rows_of_one_project")]

    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
