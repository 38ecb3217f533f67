-- What Django's models do not describe of what migration 0047 makes.

-- Whoever inserts or changes a row of a project, or gives the project to another host, holds the
-- lock of the project's row, except the round that publishes chains. That one locks the branch: a
-- change of the project's host that has not ended yet would not see the new chain.
CREATE FUNCTION perch_host_of_project() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.host_id := (SELECT host_id FROM controlplane_project WHERE id = NEW.project_id);
    RETURN NEW;
END $$;
CREATE TRIGGER perch_branch_host BEFORE INSERT OR UPDATE OF host_id ON controlplane_branch
    FOR EACH ROW EXECUTE FUNCTION perch_host_of_project();
CREATE TRIGGER perch_endpoint_host BEFORE INSERT OR UPDATE OF host_id ON controlplane_endpoint
    FOR EACH ROW EXECUTE FUNCTION perch_host_of_project();

CREATE FUNCTION perch_host_of_branch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        PERFORM FROM controlplane_branch WHERE id = NEW.branch_id FOR SHARE;
    END IF;
    NEW.host_id := (SELECT host_id FROM controlplane_branch WHERE id = NEW.branch_id);
    RETURN NEW;
END $$;
CREATE TRIGGER perch_chain_host BEFORE INSERT OR UPDATE OF host_id ON controlplane_historychain
    FOR EACH ROW EXECUTE FUNCTION perch_host_of_branch();

CREATE FUNCTION perch_host_of_rows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE controlplane_branch SET host_id = NEW.host_id WHERE project_id = NEW.id;
    UPDATE controlplane_endpoint SET host_id = NEW.host_id WHERE project_id = NEW.id;
    UPDATE controlplane_historychain SET host_id = NEW.host_id WHERE branch_id IN (
        SELECT id FROM controlplane_branch WHERE project_id = NEW.id);
    RETURN NULL;
END $$;
CREATE TRIGGER perch_project_gets_host AFTER UPDATE OF host_id ON controlplane_project
    FOR EACH ROW WHEN (OLD.host_id IS DISTINCT FROM NEW.host_id)
    EXECUTE FUNCTION perch_host_of_rows();

-- The pause between two checks is two hours after the first check since the last use, and longer
-- after the second (`operations.rounds.availability`). So a check that is due more than four hours
-- after the last use is one of those that a use makes due earlier. Other uses do not write the
-- column.
CREATE FUNCTION perch_check_is_due_earlier() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.check_due_at := NULL;
    RETURN NEW;
END $$;
CREATE TRIGGER perch_endpoint_used BEFORE UPDATE OF last_active ON controlplane_endpoint
    FOR EACH ROW WHEN (
        OLD.last_active IS DISTINCT FROM NEW.last_active
        AND OLD.check_due_at > coalesce(OLD.last_active, OLD.created_at) + interval '4 hours')
    EXECUTE FUNCTION perch_check_is_due_earlier();

-- A time that no program can read, such as one after the year 9999, is kept out of the column that
-- takes its times from computes: every statement that reads the row would fail. A trigger puts the
-- present time in its place, and does not refuse it: the previous release may still write such a
-- time, and its statement must succeed. Migration 0051 repairs the rows that exist.
CREATE FUNCTION perch_active_now() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.last_active := now();
    RETURN NEW;
END $$;
CREATE TRIGGER perch_endpoint_times BEFORE INSERT OR UPDATE OF last_active ON controlplane_endpoint
    FOR EACH ROW WHEN (NEW.last_active NOT BETWEEN '2000-01-01Z' AND '9000-01-01Z')
    EXECUTE FUNCTION perch_active_now();

-- A row of the last samples changes every minute. Unlogged, it costs no write-ahead log, and where a
-- page has room, its new version needs no new entry in the index.
ALTER TABLE controlplane_lastsample SET UNLOGGED, SET (fillfactor = 70);
-- This release deletes endpoints without these rows.
ALTER TABLE controlplane_recentmetrics
    DROP CONSTRAINT controlplane_recentm_endpoint_id_5afff853_fk_controlpl;
ALTER TABLE controlplane_pastmetrics
    DROP CONSTRAINT controlplane_pastmet_endpoint_id_6e4139b2_fk_controlpl;
