"""Count what branches use, for every writer: by triggers on what changes how much that is.

Locks are taken in one order: endpoint, branch, meter, usage; of several branches, by id.
"""

import django.db.models.deletion
from django.db import migrations, models

# For how long rows are kept: what the API offers, and some more for reports that come late.
SPANS = """
CREATE FUNCTION perch_spans() RETURNS TABLE (span text, step interval, kept interval)
LANGUAGE sql IMMUTABLE AS $$
    VALUES ('hour', interval '1 hour', interval '8 days'),
        ('day', interval '1 day', interval '62 days'),
        ('month', interval '1 month', interval '14 months')
$$;
"""
# Months and days are those of UTC, whoever calls.
ADD_INTERVAL = """
CREATE FUNCTION perch_add_interval(
    of_branch text, since timestamptz, until timestamptz, units float8, bytes bigint
) RETURNS void LANGUAGE sql SET timezone = 'UTC' AS $$
    INSERT INTO controlplane_usage AS had (account_id, project_id, branch_id, of_root, span, start,
        active_seconds, compute_seconds, storage_byte_hours)
    SELECT p.account_id, b.project_id, b.id, b.parent_id IS NULL, s.span, part.start,
        CASE WHEN units > 0 THEN part.seconds ELSE 0 END,
        part.seconds * units, part.seconds / 3600 * bytes
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
        storage_byte_hours = had.storage_byte_hours + excluded.storage_byte_hours
$$;
"""
ADD_BYTES = """
CREATE FUNCTION perch_add_bytes(branches text[], written bigint[], transferred bigint[])
RETURNS void LANGUAGE sql SET timezone = 'UTC' AS $$
    INSERT INTO controlplane_usage AS had (account_id, project_id, branch_id, of_root, span, start,
        written_bytes, transferred_bytes)
    SELECT p.account_id, b.project_id, b.id, b.parent_id IS NULL, s.span, date_trunc(s.span, now()),
        sum(added.written), sum(added.transferred)
    FROM unnest(branches, written, transferred) AS added (branch_id, written, transferred)
    JOIN controlplane_branch b ON b.id = added.branch_id
    JOIN controlplane_project p ON p.id = b.project_id
    CROSS JOIN perch_spans() s
    GROUP BY p.account_id, b.id, s.span
    ORDER BY b.id, s.span
    ON CONFLICT (branch_id, span, start) DO UPDATE SET
        written_bytes = had.written_bytes + excluded.written_bytes,
        transferred_bytes = had.transferred_bytes + excluded.transferred_bytes
$$;
"""
# Brings a branch's meter to what the rows say now, and settles what ran until `at`: since then its
# endpoint is, or is no more, what it is.
METER = """
CREATE FUNCTION perch_meter(of_branch text, at timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    is_there boolean;
    units float8;
    bytes bigint;
    had controlplane_meter;
BEGIN
    SELECT b.deleted_at IS NULL AND p.deleted_at IS NULL, coalesce(b.logical_size, 0)
        INTO is_there, bytes
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
    IF bytes <> had.stored_bytes THEN
        IF had.stored_bytes > 0 THEN
            PERFORM perch_add_interval(of_branch, had.stored_since, now(), 0, had.stored_bytes);
        END IF;
        UPDATE controlplane_meter SET stored_bytes = bytes,
            stored_since = greatest(had.stored_since, now()) WHERE branch_id = of_branch;
    END IF;
END $$;
"""
TRIGGERS = """
CREATE FUNCTION perch_meter_endpoint() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    at timestamptz := now();
BEGIN
    IF TG_OP = 'INSERT' THEN
        at := coalesce(NEW.started_at, at);
    ELSIF NEW.branch_id <> OLD.branch_id THEN
        PERFORM perch_meter(OLD.branch_id, at);
    ELSIF NEW.current_state <> OLD.current_state THEN
        -- Where whoever changed it knows since when: a compute that died did so before that was
        -- seen.
        IF NEW.current_state = 'active' AND NEW.started_at IS DISTINCT FROM OLD.started_at THEN
            at := coalesce(NEW.started_at, at);
        ELSIF NEW.suspended_at IS DISTINCT FROM OLD.suspended_at THEN
            at := coalesce(NEW.suspended_at, at);
        END IF;
    END IF;
    PERFORM perch_meter(NEW.branch_id, at);
    RETURN NULL;
END $$;
CREATE TRIGGER perch_endpoint_metered_new AFTER INSERT ON controlplane_endpoint
    FOR EACH ROW WHEN (NEW.current_state = 'active') EXECUTE FUNCTION perch_meter_endpoint();
CREATE TRIGGER perch_endpoint_metered AFTER UPDATE ON controlplane_endpoint
    FOR EACH ROW WHEN ((OLD.current_state, OLD.branch_id, OLD.autoscaling_limit_max_cu,
        OLD.deleted_at) IS DISTINCT FROM (NEW.current_state, NEW.branch_id,
        NEW.autoscaling_limit_max_cu, NEW.deleted_at))
    EXECUTE FUNCTION perch_meter_endpoint();

CREATE FUNCTION perch_meter_branch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM perch_meter(NEW.id, now());
    RETURN NULL;
END $$;
CREATE TRIGGER perch_branch_metered_new AFTER INSERT ON controlplane_branch
    FOR EACH ROW EXECUTE FUNCTION perch_meter_branch();
CREATE TRIGGER perch_branch_metered AFTER UPDATE ON controlplane_branch
    FOR EACH ROW WHEN ((OLD.logical_size, OLD.deleted_at) IS DISTINCT FROM
        (NEW.logical_size, NEW.deleted_at))
    EXECUTE FUNCTION perch_meter_branch();

CREATE FUNCTION perch_meter_project() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM perch_meter(b.id, now()) FROM (
        SELECT id FROM controlplane_branch WHERE project_id = NEW.id ORDER BY id
    ) b;
    RETURN NULL;
END $$;
CREATE TRIGGER perch_project_metered AFTER UPDATE ON controlplane_project
    FOR EACH ROW WHEN (OLD.deleted_at IS DISTINCT FROM NEW.deleted_at)
    EXECUTE FUNCTION perch_meter_project();
"""
# Counts what was written since the position that was noted last, and notes the new one with it:
# both or neither. In other data than before, nothing is known to have been written.
NOTE_WRITTEN = """
CREATE FUNCTION perch_note_written(of_branch text, of_data text, position_now bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    had controlplane_meter;
BEGIN
    SELECT * INTO had FROM controlplane_meter WHERE branch_id = of_branch FOR NO KEY UPDATE;
    IF NOT FOUND OR (had.written_data = of_data AND had.written_position >= position_now) THEN
        RETURN;
    END IF;
    UPDATE controlplane_meter SET written_data = of_data, written_position = position_now
        WHERE branch_id = of_branch;
    IF had.written_data = of_data THEN
        PERFORM perch_add_bytes(
            ARRAY[of_branch], ARRAY[position_now - had.written_position], ARRAY[0]::bigint[]);
    END IF;
END $$;
"""
# Without a branch it is the endpoint's.
NOTE_TRAFFIC = """
CREATE FUNCTION perch_note_traffic(
    reporter uuid, number bigint, endpoints text[], branches text[], amounts bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO controlplane_trafficreporter AS had (id, report, reported_at)
        VALUES (reporter, number, now())
        ON CONFLICT (id) DO UPDATE SET report = number, reported_at = now()
        WHERE had.report < number;
    IF FOUND THEN
        PERFORM perch_add_bytes(array_agg(b.id), array_agg(0::bigint), array_agg(one.amount))
            FROM unnest(endpoints, branches, amounts) AS one (endpoint_id, branch_id, amount)
            LEFT JOIN controlplane_endpoint e ON e.id = one.endpoint_id
            JOIN controlplane_branch b
                ON b.id = coalesce(nullif(one.branch_id, ''), e.branch_id);
    END IF;
END $$;
"""
BEGIN = """
INSERT INTO controlplane_meter (branch_id, compute_units, active_since, stored_bytes, stored_since)
    SELECT id, 0, now(), 0, now() FROM controlplane_branch;
SELECT perch_meter(id, now()) FROM (SELECT id FROM controlplane_branch ORDER BY id) b;
"""
FORGET = """
DROP TRIGGER perch_project_metered ON controlplane_project;
DROP TRIGGER perch_branch_metered ON controlplane_branch;
DROP TRIGGER perch_branch_metered_new ON controlplane_branch;
DROP TRIGGER perch_endpoint_metered ON controlplane_endpoint;
DROP TRIGGER perch_endpoint_metered_new ON controlplane_endpoint;
DROP FUNCTION perch_note_traffic(uuid, bigint, text[], text[], bigint[]);
DROP FUNCTION perch_note_written(text, text, bigint);
DROP FUNCTION perch_meter_project();
DROP FUNCTION perch_meter_branch();
DROP FUNCTION perch_meter_endpoint();
DROP FUNCTION perch_meter(text, timestamptz);
DROP FUNCTION perch_add_bytes(text[], bigint[], bigint[]);
DROP FUNCTION perch_add_interval(text, timestamptz, timestamptz, float8, bigint);
DROP FUNCTION perch_spans();
"""
# Every change of a row of these is one of numbers: room in each page for its next version.
ROOM = """
ALTER TABLE controlplane_usage SET (fillfactor = 70);
ALTER TABLE controlplane_meter SET (fillfactor = 70);
"""
# The release before this one still writes them, and may run beside for a moment.
TOTALS = """
ALTER TABLE controlplane_branch ALTER active_seconds SET DEFAULT 0,
    ALTER compute_seconds SET DEFAULT 0;
"""


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0020_project_settings")]

    operations = [
        migrations.CreateModel(
            name="Usage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("project_id", models.CharField(max_length=60)),
                ("branch_id", models.CharField(max_length=60)),
                ("of_root", models.BooleanField()),
                ("span", models.CharField(choices=[("hour", "For the last 168 hours"), ("day", "For the last 60 days"), ("month", "The consumption periods, for a year")], max_length=5)),
                ("start", models.DateTimeField()),
                ("active_seconds", models.FloatField(db_default=0)),
                ("compute_seconds", models.FloatField(db_default=0)),
                ("written_bytes", models.BigIntegerField(db_default=0)),
                ("transferred_bytes", models.BigIntegerField(db_default=0)),
                ("storage_byte_hours", models.FloatField(db_default=0)),
                ("account", models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="controlplane.account")),
            ],
            options={
                "indexes": [
                    models.Index(fields=["project_id", "span", "start"], name="usage_of_a_project"),
                    models.Index(fields=["account", "span", "start"], name="usage_of_an_account"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("branch_id", "span", "start"), name="one_usage_of_a_span")
                ],
            },
        ),
        migrations.CreateModel(
            name="Meter",
            fields=[
                ("branch", models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name="meter", serialize=False, to="controlplane.branch")),
                ("compute_units", models.FloatField()),
                ("active_since", models.DateTimeField()),
                ("stored_bytes", models.BigIntegerField()),
                ("stored_since", models.DateTimeField()),
                ("written_position", models.BigIntegerField(null=True)),
                ("written_data", models.CharField(db_default="", max_length=64)),
            ],
        ),
        migrations.CreateModel(
            name="TrafficReporter",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("report", models.BigIntegerField()),
                ("reported_at", models.DateTimeField(db_index=True)),
            ],
        ),
        migrations.AddIndex(
            model_name="endpoint",
            index=models.Index(condition=models.Q(("current_state", "active"), ("deleted_at", None)), fields=["project"], name="active_endpoints"),
        ),
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL(TOTALS, migrations.RunSQL.noop)],
            state_operations=[
                migrations.RemoveField(model_name="branch", name="active_seconds"),
                migrations.RemoveField(model_name="branch", name="compute_seconds"),
            ],
        ),
        migrations.RunSQL(ROOM, migrations.RunSQL.noop),
        migrations.RunSQL(
            "".join([SPANS, ADD_INTERVAL, ADD_BYTES, METER, TRIGGERS, NOTE_WRITTEN, NOTE_TRAFFIC, BEGIN]),
            FORGET,
        ),
    ]
