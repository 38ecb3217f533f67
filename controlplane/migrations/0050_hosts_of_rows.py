"""Branches, endpoints and chains of history name the host of their project, and an endpoint when its
next availability check may be due. So a host's rounds find its rows by an index, however many rows
the other hosts of the region have. Migration 0051 fills the columns of the rows that exist.

Triggers keep the hosts, because the previous release writes rows too, during an upgrade.
"""

import django.db.models.deletion
from django.db import migrations, models

# Whoever inserts or changes a row of a project, or gives the project to another host, holds the
# lock of the project's row, except the round that publishes chains. That one locks the branch: a
# change of the project's host that has not ended yet would not see the new chain.
KEEP_HOSTS = """
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
"""
KEEP_NO_HOSTS = """
DROP TRIGGER perch_project_gets_host ON controlplane_project;
DROP FUNCTION perch_host_of_rows();
DROP TRIGGER perch_chain_host ON controlplane_historychain;
DROP FUNCTION perch_host_of_branch();
DROP TRIGGER perch_endpoint_host ON controlplane_endpoint;
DROP TRIGGER perch_branch_host ON controlplane_branch;
DROP FUNCTION perch_host_of_project();
"""
# The pause between two checks is two hours after the first check since the last use, and longer
# after the second (`operations.rounds.availability`). So a check that is due more than four hours after
# the last use is one of those that a use makes due earlier. Other uses do not write the column.
LOOK_AFTER_USE = """
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
"""
LOOK_NEVER = """
DROP TRIGGER perch_endpoint_used ON controlplane_endpoint;
DROP FUNCTION perch_check_is_due_earlier();
"""


def host() -> models.ForeignKey:
    return models.ForeignKey(
        db_constraint=False,
        db_index=False,
        editable=False,
        null=True,
        on_delete=django.db.models.deletion.DO_NOTHING,
        related_name="+",
        to="controlplane.host",
    )


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0049_log_receivers")]

    operations = [
        migrations.AddField("branch", "host", host()),
        migrations.AddField("endpoint", "host", host()),
        migrations.AddField("historychain", "host", host()),
        migrations.AddField("endpoint", "check_due_at", models.DateTimeField(null=True)),
        migrations.RunSQL(KEEP_HOSTS, KEEP_NO_HOSTS),
        migrations.RunSQL(LOOK_AFTER_USE, LOOK_NEVER),
    ]
