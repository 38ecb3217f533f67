"""Count what the histories of branches take, beside what their data takes."""

from django.db import migrations, models

# As migration 0021 has made them, with the bytes of the history. A caller of the release before
# this one passes none.
ADD_INTERVAL = """
DROP FUNCTION perch_add_interval(text, timestamptz, timestamptz, float8, bigint);
CREATE FUNCTION perch_add_interval(
    of_branch text, since timestamptz, until timestamptz, units float8, bytes bigint,
    past bigint DEFAULT 0
) RETURNS void LANGUAGE sql SET timezone = 'UTC' AS $$
    INSERT INTO controlplane_usage AS had (account_id, project_id, branch_id, of_root, span, start,
        active_seconds, compute_seconds, storage_byte_hours, history_byte_hours)
    SELECT p.account_id, b.project_id, b.id, b.parent_id IS NULL, s.span, part.start,
        CASE WHEN units > 0 THEN part.seconds ELSE 0 END,
        part.seconds * units, part.seconds / 3600 * bytes, part.seconds / 3600 * past
    FROM controlplane_branch b
    JOIN controlplane_project p ON p.id = b.project_id
    CROSS JOIN perch_spans() s
    CROSS JOIN LATERAL (
        SELECT one AS start,
            extract(epoch FROM least(until, one + s.step) - greatest(since, one))::float8 AS seconds
        FROM generate_series(date_trunc(s.span, greatest(since, now() - s.kept)), until, s.step) one
    ) part
    WHERE b.id = of_branch AND part.seconds > 0
    ORDER BY s.span, part.start
    ON CONFLICT (branch_id, span, start) DO UPDATE SET
        active_seconds = had.active_seconds + excluded.active_seconds,
        compute_seconds = had.compute_seconds + excluded.compute_seconds,
        storage_byte_hours = had.storage_byte_hours + excluded.storage_byte_hours,
        history_byte_hours = had.history_byte_hours + excluded.history_byte_hours
$$;
"""
METER = """
CREATE OR REPLACE FUNCTION perch_meter(of_branch text, at timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    is_there boolean;
    units float8;
    bytes bigint;
    past bigint;
    had controlplane_meter;
BEGIN
    SELECT b.deleted_at IS NULL AND p.deleted_at IS NULL, coalesce(b.logical_size, 0),
            b.history_bytes
        INTO is_there, bytes, past
        FROM controlplane_branch b JOIN controlplane_project p ON p.id = b.project_id
        WHERE b.id = of_branch FOR NO KEY UPDATE OF b;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT coalesce(max(autoscaling_limit_max_cu), 0) INTO units FROM controlplane_endpoint
        WHERE branch_id = of_branch AND deleted_at IS NULL AND current_state = 'active';
    IF NOT is_there THEN
        units := 0;
        bytes := 0;
        past := 0;
    END IF;
    SELECT * INTO had FROM controlplane_meter WHERE branch_id = of_branch FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        -- Nobody else does meanwhile: the branch is locked.
        INSERT INTO controlplane_meter
            (branch_id, compute_units, active_since, stored_bytes, stored_since)
            VALUES (of_branch, 0, now(), 0, now()) RETURNING * INTO had;
    END IF;
    IF units <> had.compute_units THEN
        at := least(at, clock_timestamp());
        IF had.compute_units > 0 THEN
            at := greatest(at, had.active_since);
            PERFORM perch_add_interval(of_branch, had.active_since, at, had.compute_units, 0);
        END IF;
        UPDATE controlplane_meter SET compute_units = units, active_since = at
            WHERE branch_id = of_branch;
    END IF;
    IF bytes <> had.stored_bytes OR past <> had.history_bytes THEN
        IF had.stored_bytes > 0 OR had.history_bytes > 0 THEN
            PERFORM perch_add_interval(
                of_branch, had.stored_since, now(), 0, had.stored_bytes, had.history_bytes);
        END IF;
        UPDATE controlplane_meter SET stored_bytes = bytes, history_bytes = past,
            stored_since = greatest(had.stored_since, now()) WHERE branch_id = of_branch;
    END IF;
END $$;
"""
TRIGGER = """
DROP TRIGGER perch_branch_metered ON controlplane_branch;
CREATE TRIGGER perch_branch_metered AFTER UPDATE ON controlplane_branch
    FOR EACH ROW WHEN ((OLD.logical_size, OLD.history_bytes, OLD.deleted_at) IS DISTINCT FROM
        (NEW.logical_size, NEW.history_bytes, NEW.deleted_at))
    EXECUTE FUNCTION perch_meter_branch();
"""


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0038_logs")]

    operations = [
        migrations.AddField("branch", "history_bytes", models.BigIntegerField(db_default=0, default=0)),
        migrations.AddField("historychain", "disk_bytes", models.BigIntegerField(db_default=0, default=0)),
        migrations.AddField("historychain", "spent_at", models.DateTimeField(null=True)),
        migrations.AddIndex("historychain", models.Index(fields=["spent_at"], name="spent_history")),
        migrations.AddField("meter", "history_bytes", models.BigIntegerField(db_default=0)),
        migrations.AddField("usage", "history_byte_hours", models.FloatField(db_default=0)),
        migrations.RunSQL("".join([ADD_INTERVAL, METER, TRIGGER])),
    ]
