"""Tell whoever listens that there are new events, and that an operation has ended.

The API's processes hand both on to the callers that wait for them.
"""

from django.db import migrations

FORWARD = """
CREATE FUNCTION perch_notify_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('perch_events', '');
    RETURN NULL;
END $$;

CREATE TRIGGER perch_event_written
    AFTER INSERT ON controlplane_event
    FOR EACH STATEMENT EXECUTE FUNCTION perch_notify_events();

CREATE FUNCTION perch_notify_operation_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('perch_operations', NEW.id::text);
    RETURN NULL;
END $$;

CREATE TRIGGER perch_operation_ended
    AFTER UPDATE OF status ON controlplane_operation
    FOR EACH ROW WHEN (NEW.status IN ('finished', 'failed', 'cancelled'))
    EXECUTE FUNCTION perch_notify_operation_ended();
"""
BACKWARD = """
DROP TRIGGER perch_event_written ON controlplane_event;
DROP TRIGGER perch_operation_ended ON controlplane_operation;
DROP FUNCTION perch_notify_events();
DROP FUNCTION perch_notify_operation_ended();
"""


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0012_story_and_events")]

    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
