"""Keep a time that no program can read, such as one after the year 9999, out of the column that
takes its times from computes: every statement that reads the row would fail.

A trigger puts the present time in its place, and does not refuse it: the previous release may
still write such a time, and its statement must succeed.
"""

from django.db import migrations

REPAIR = """
UPDATE controlplane_endpoint SET last_active = now()
WHERE last_active NOT BETWEEN '2000-01-01Z' AND '9000-01-01Z';
"""
TRIGGER = """
CREATE FUNCTION perch_active_now() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.last_active := now();
    RETURN NEW;
END $$;
CREATE TRIGGER perch_endpoint_times BEFORE INSERT OR UPDATE OF last_active ON controlplane_endpoint
    FOR EACH ROW WHEN (NEW.last_active NOT BETWEEN '2000-01-01Z' AND '9000-01-01Z')
    EXECUTE FUNCTION perch_active_now();
"""


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0067_request_of_an_operation")]

    operations = [migrations.RunSQL(TRIGGER), migrations.RunSQL(REPAIR)]
