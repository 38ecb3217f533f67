-- What Django's models do not describe of several hosts in a region, history and its usage.

-- What the proxies and workers of between 0.2.0 and now had in the region.
ALTER TABLE controlplane_region
    ALTER pooling_available SET DEFAULT false,
    ADD pg_versions jsonb NOT NULL DEFAULT '[]',
    ADD proxy_problems jsonb NOT NULL DEFAULT '[]',
    ADD quality jsonb NOT NULL DEFAULT '{}',
    ADD history_store jsonb NOT NULL DEFAULT '{}',
    ADD backups_since timestamptz,
    ADD backup_taken_at timestamptz,
    ADD backup_verified_at timestamptz;

CREATE FUNCTION perch_sign_of_life_for_older_proxies() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE controlplane_region SET worker_seen_at = NEW.worker_seen_at WHERE id = NEW.id;
    RETURN NULL;
END $$;
CREATE TRIGGER sign_of_life_for_older_proxies AFTER UPDATE OF worker_seen_at ON controlplane_host
    FOR EACH ROW EXECUTE FUNCTION perch_sign_of_life_for_older_proxies();

ALTER TABLE controlplane_project ADD CONSTRAINT project_and_host_share_a_region
    FOREIGN KEY (host_id, region_id) REFERENCES controlplane_host (id, region_id)
    DEFERRABLE INITIALLY DEFERRED;

-- The proxies keep what they know of endpoints until they hear of a change.
CREATE TRIGGER perch_project_host_changed AFTER UPDATE OF host_id ON controlplane_project
    FOR EACH ROW WHEN (OLD.host_id IS DISTINCT FROM NEW.host_id)
    EXECUTE FUNCTION perch_notify_project_settings();
CREATE TRIGGER perch_account_disabled AFTER UPDATE OF disabled_at ON controlplane_account
    FOR EACH ROW WHEN (OLD.disabled_at IS DISTINCT FROM NEW.disabled_at)
    EXECUTE FUNCTION perch_notify_plan();

-- Keeps a role's password when its row gets another one, goes to another branch or is deleted.
CREATE FUNCTION perch_keep_former_password() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO controlplane_formerpassword
        (branch_id, verifier, encrypted_password, replaced_at)
    VALUES (OLD.branch_id, OLD.verifier, OLD.encrypted_password, now());
    RETURN NULL;
END $$;
CREATE TRIGGER former_password_of_changed_role
    AFTER UPDATE OF verifier, branch_id ON controlplane_role FOR EACH ROW
    WHEN (OLD.verifier <> '' AND (OLD.verifier IS DISTINCT FROM NEW.verifier
        OR OLD.branch_id IS DISTINCT FROM NEW.branch_id))
    EXECUTE FUNCTION perch_keep_former_password();
CREATE TRIGGER former_password_of_deleted_role
    AFTER DELETE ON controlplane_role FOR EACH ROW WHEN (OLD.verifier <> '')
    EXECUTE FUNCTION perch_keep_former_password();

-- Usage also counts what the histories of branches take. 0.2.0 passes no `past`.
DROP FUNCTION IF EXISTS perch_add_interval(text, timestamptz, timestamptz, float8, bigint);
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

CREATE OR REPLACE FUNCTION perch_meter(of_branch text, at timestamptz) RETURNS void
    LANGUAGE plpgsql AS $$
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

CREATE OR REPLACE TRIGGER perch_branch_metered AFTER UPDATE ON controlplane_branch
    FOR EACH ROW WHEN ((OLD.logical_size, OLD.history_bytes, OLD.deleted_at) IS DISTINCT FROM
        (NEW.logical_size, NEW.history_bytes, NEW.deleted_at))
    EXECUTE FUNCTION perch_meter_branch();

-- A row of recent metrics changes every minute. Unlogged, it costs no write-ahead log, and where a
-- page has room, its new version needs no new entries in the indexes.
ALTER TABLE controlplane_recentmetrics SET UNLOGGED, SET (fillfactor = 70);
