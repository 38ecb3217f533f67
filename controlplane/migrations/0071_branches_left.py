"""Marks the history of a branch whose endpoint is deleted or moves to another branch: not all of the
branch's log may be copied, and no endpoint's row tells any more when its compute stopped."""

from django.db import migrations

NOTE = """
CREATE FUNCTION perch_note_branch_left() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE controlplane_historychain SET updated_at = 'epoch' WHERE branch_id = OLD.branch_id;
    RETURN NULL;
END $$;
CREATE TRIGGER perch_branch_left AFTER UPDATE OF branch_id, deleted_at ON controlplane_endpoint
FOR EACH ROW WHEN (OLD.branch_id <> NEW.branch_id OR OLD.deleted_at IS NULL AND NEW.deleted_at IS NOT NULL)
EXECUTE FUNCTION perch_note_branch_left();
"""
NOTE_THOSE_LEFT_BEFORE = """
UPDATE controlplane_historychain chain SET updated_at = 'epoch' WHERE NOT EXISTS (
    SELECT FROM controlplane_endpoint endpoint
    WHERE endpoint.branch_id = chain.branch_id AND endpoint.deleted_at IS NULL);
"""


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0070_former_queue")]

    operations = [migrations.RunSQL(NOTE), migrations.RunSQL(NOTE_THOSE_LEFT_BEFORE)]
