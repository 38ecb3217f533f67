-- What Django's models do not describe of the schema of 0.2.0: foreign keys of two columns, an
-- unlogged table, and the functions and triggers that notify of changes, meter use, owe deliveries
-- of webhooks and hold rates of requests. Migration 0030 makes those that it changed since:
-- `perch_add_interval`, `perch_meter` and the trigger `perch_branch_metered`.

ALTER TABLE controlplane_requestrate SET UNLOGGED, SET (fillfactor = 50);

ALTER TABLE controlplane_branch
    ADD CONSTRAINT branch_and_parent_share_a_project FOREIGN KEY (parent_id, project_id)
    REFERENCES controlplane_branch(id, project_id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE controlplane_branch
    ADD CONSTRAINT branch_and_schema_share_a_project FOREIGN KEY (schema_of_id, project_id)
    REFERENCES controlplane_branch(id, project_id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE controlplane_webhookdelivery
    ADD CONSTRAINT delivery_event FOREIGN KEY (event_id)
    REFERENCES controlplane_event(id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE controlplane_endpoint
    ADD CONSTRAINT endpoint_and_branch_share_a_project FOREIGN KEY (branch_id, project_id)
    REFERENCES controlplane_branch(id, project_id) DEFERRABLE INITIALLY DEFERRED;

CREATE FUNCTION perch_spans() RETURNS TABLE(span text, step interval, kept interval)
    LANGUAGE sql IMMUTABLE AS $$
    VALUES ('hour', interval '1 hour', interval '8 days'),
        ('day', interval '1 day', interval '62 days'),
        ('month', interval '1 month', interval '14 months')
$$;

CREATE FUNCTION perch_add_bytes(branches text[], written bigint[], transferred bigint[]) RETURNS void
    LANGUAGE sql SET timezone = 'UTC' AS $$
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

CREATE FUNCTION perch_meter_branch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM perch_meter(NEW.id, now());
    RETURN NULL;
END $$;

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

CREATE FUNCTION perch_meter_project() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM perch_meter(b.id, now()) FROM (
        SELECT id FROM controlplane_branch WHERE project_id = NEW.id ORDER BY id
    ) b;
    RETURN NULL;
END $$;

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

CREATE FUNCTION perch_note_written(of_branch text, of_data text, position_now bigint) RETURNS void
    LANGUAGE plpgsql AS $$
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

CREATE FUNCTION perch_notify_branch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('perch_endpoints', id) FROM controlplane_endpoint
        WHERE branch_id = NEW.id AND deleted_at IS NULL;
    RETURN NULL;
END $$;

CREATE FUNCTION perch_notify_endpoint() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('perch_endpoints', NEW.id);
    RETURN NULL;
END $$;

CREATE FUNCTION perch_notify_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('perch_events', '');
    RETURN NULL;
END $$;

CREATE FUNCTION perch_notify_operation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('perch_endpoints', NEW.endpoint_id);
    RETURN NULL;
END $$;

CREATE FUNCTION perch_notify_operation_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('perch_operations', NEW.id::text);
    RETURN NULL;
END $$;

CREATE FUNCTION perch_notify_plan() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('perch_endpoints', e.id)
        FROM controlplane_endpoint e JOIN controlplane_project p ON p.id = e.project_id
        WHERE p.account_id = NEW.id AND e.deleted_at IS NULL;
    RETURN NULL;
END $$;

CREATE FUNCTION perch_notify_project_settings() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('perch_endpoints', id) FROM controlplane_endpoint
        WHERE project_id = NEW.id AND deleted_at IS NULL;
    RETURN NULL;
END $$;

CREATE FUNCTION perch_notify_role() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('perch_endpoints', id) FROM controlplane_endpoint
        WHERE branch_id = NEW.branch_id AND deleted_at IS NULL;
    RETURN NULL;
END $$;

CREATE FUNCTION perch_notify_role_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('perch_endpoints', id) FROM controlplane_endpoint
        WHERE branch_id = OLD.branch_id AND deleted_at IS NULL;
    RETURN NULL;
END $$;

CREATE FUNCTION perch_owe_deliveries() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    WITH owed AS (
        INSERT INTO controlplane_webhookdelivery
            (webhook_id, event_id, next_attempt_at, gives_up_at)
        SELECT webhook.id, written.id, now(), now() + interval '1 day'
        FROM written JOIN controlplane_webhook AS webhook USING (account_id)
        WHERE webhook.enabled
            AND (webhook.project_id IS NULL OR webhook.project_id = written.project_id)
            AND webhook.event_types && ARRAY[written.type, '*']::varchar[]
        ORDER BY written.id
        RETURNING webhook_id
    )
    INSERT INTO procrastinate_jobs (queue_name, task_name, lock, args)
    SELECT 'webhooks', 'controlplane.send_deliveries', webhook.id,
        jsonb_build_object('webhook_id', webhook.id, 'account', webhook.account_id)
    FROM controlplane_webhook AS webhook
    WHERE webhook.id IN (SELECT webhook_id FROM owed);
    RETURN NULL;
END $$;

CREATE FUNCTION perch_take_turn(names text[], spacings float8[], bursts float8[])
    RETURNS TABLE(seconds float8, rate integer) LANGUAGE plpgsql AS $$
DECLARE
    was timestamptz;
    at timestamptz;
    free timestamptz[] := '{}';
    ahead float8;
BEGIN
    seconds := 0;
    rate := 0;
    FOR i IN 1 .. cardinality(names) LOOP
        SELECT free_at INTO was FROM controlplane_requestrate
            WHERE name = names[i] FOR NO KEY UPDATE;
        free := array_append(free, was);
    END LOOP;
    at := clock_timestamp();
    FOR i IN 1 .. cardinality(names) LOOP
        ahead := greatest(0, extract(epoch FROM coalesce(free[i], at) - at)) + spacings[i];
        -- Times are whole microseconds: what differs by less is the same.
        IF ahead - bursts[i] * spacings[i] > greatest(seconds, 0.00001) THEN
            seconds := ahead - bursts[i] * spacings[i];
            rate := i;
        END IF;
    END LOOP;
    IF seconds = 0 THEN
        INSERT INTO controlplane_requestrate AS kept (name, free_at)
            SELECT one.name, at + one.spacing * interval '1 second'
            FROM unnest(names, spacings) WITH ORDINALITY AS one (name, spacing, place)
            ORDER BY one.place
        ON CONFLICT (name) DO UPDATE SET free_at =
            greatest(kept.free_at, at) + (excluded.free_at - at);
    END IF;
    RETURN NEXT;
END $$;

CREATE TRIGGER perch_branch_metered_new
    AFTER INSERT ON controlplane_branch FOR EACH ROW
    EXECUTE FUNCTION perch_meter_branch();

CREATE TRIGGER perch_branch_protected
    AFTER UPDATE OF protected ON controlplane_branch FOR EACH ROW
    WHEN (old.protected IS DISTINCT FROM new.protected)
    EXECUTE FUNCTION perch_notify_branch();

CREATE TRIGGER perch_endpoint_changed
    AFTER INSERT OR UPDATE OF current_state, branch_id, disabled, pooler_enabled, deleted_at
    ON controlplane_endpoint FOR EACH ROW
    EXECUTE FUNCTION perch_notify_endpoint();

CREATE TRIGGER perch_endpoint_metered
    AFTER UPDATE ON controlplane_endpoint FOR EACH ROW
    WHEN (old.current_state IS DISTINCT FROM new.current_state
        OR old.branch_id IS DISTINCT FROM new.branch_id
        OR old.autoscaling_limit_max_cu IS DISTINCT FROM new.autoscaling_limit_max_cu
        OR old.deleted_at IS DISTINCT FROM new.deleted_at)
    EXECUTE FUNCTION perch_meter_endpoint();

CREATE TRIGGER perch_endpoint_metered_new
    AFTER INSERT ON controlplane_endpoint FOR EACH ROW
    WHEN (new.current_state = 'active')
    EXECUTE FUNCTION perch_meter_endpoint();

CREATE TRIGGER perch_event_owed
    AFTER INSERT ON controlplane_event
    REFERENCING NEW TABLE AS written FOR EACH STATEMENT
    EXECUTE FUNCTION perch_owe_deliveries();

CREATE TRIGGER perch_event_written
    AFTER INSERT ON controlplane_event FOR EACH STATEMENT
    EXECUTE FUNCTION perch_notify_events();

CREATE TRIGGER perch_operation_changed
    AFTER INSERT OR UPDATE OF status ON controlplane_operation FOR EACH ROW
    WHEN (new.endpoint_id IS NOT NULL)
    EXECUTE FUNCTION perch_notify_operation();

CREATE TRIGGER perch_operation_ended
    AFTER UPDATE OF status ON controlplane_operation FOR EACH ROW
    WHEN (new.status IN ('finished', 'failed', 'cancelled'))
    EXECUTE FUNCTION perch_notify_operation_ended();

CREATE TRIGGER perch_plan_changed
    AFTER UPDATE OF plan ON controlplane_account FOR EACH ROW
    EXECUTE FUNCTION perch_notify_plan();

CREATE TRIGGER perch_project_metered
    AFTER UPDATE ON controlplane_project FOR EACH ROW
    WHEN (old.deleted_at IS DISTINCT FROM new.deleted_at)
    EXECUTE FUNCTION perch_meter_project();

CREATE TRIGGER perch_project_settings_changed
    AFTER UPDATE OF settings ON controlplane_project FOR EACH ROW
    WHEN (old.settings IS DISTINCT FROM new.settings)
    EXECUTE FUNCTION perch_notify_project_settings();

CREATE TRIGGER perch_role_changed
    AFTER INSERT OR UPDATE ON controlplane_role FOR EACH ROW
    EXECUTE FUNCTION perch_notify_role();

CREATE TRIGGER perch_role_gone
    AFTER DELETE ON controlplane_role FOR EACH ROW
    EXECUTE FUNCTION perch_notify_role_gone();
