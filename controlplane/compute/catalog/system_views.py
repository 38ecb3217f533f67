"""Makes Postgres's own views read-only in every database of a cluster, and finds what was written
through them before.

Postgres lets no role but a superuser write its catalogs, but does not count views among these. Some
of its views can be written, such as `pg_group`, and what is written through them goes into the
catalogs with the rights of the views' owner, a superuser. So whoever has `pg_write_all_data`, as
every owner has, could rename roles, and the platform's next GRANT would give rights to another role
than the one it names.
"""

import json
from pathlib import Path

from controlplane.compute.catalog.removal import COLUMNS, DatabaseRow, close_again, session_in
from controlplane.compute.host.filesystem import branch_dir
from controlplane.compute.host.patience import report_progress
from controlplane.compute.processes.session import Session, session

# A trigger in place of each write. Unlike a rule, it also keeps a view from being written while
# `session_replication_role` lets no trigger fire. The function is Postgres's own, so that nothing
# is left to copy or to drop: it raises an error wherever it is not called before an update.
# Creating a trigger waits for no reader. Views with rules of their own (`pg_settings`) have these
# in place of writes. A single line, as Postgres in single-user mode reads it.
CLOSE = " ".join(
    """
DO $$ DECLARE name regclass; BEGIN
    FOR name IN SELECT oid FROM pg_catalog.pg_class c
        WHERE relkind = 'v' AND oid < 16384 AND pg_catalog.pg_relation_is_updatable(oid, false) <> 0
            AND NOT EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = c.oid)
            AND NOT EXISTS (
                SELECT FROM pg_catalog.pg_rewrite WHERE ev_class = c.oid AND ev_type <> '1')
    LOOP EXECUTE pg_catalog.format('CREATE TRIGGER perch_read_only
        INSTEAD OF INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW
        EXECUTE FUNCTION pg_catalog.suppress_redundant_updates_trigger()', name);
    END LOOP; END $$
""".split()
)
IS_CLOSED = """
SELECT 1 FROM pg_trigger WHERE tgrelid = 'pg_group'::regclass AND tgname = 'perch_read_only'
"""
# Leaves out those whose DROP was interrupted: they can only be dropped.
DATABASES = f"""
SELECT {COLUMNS} FROM pg_database
WHERE datname <> current_database() AND datconnlimit <> -2 AND oid::bigint <> ALL (%s::bigint[])
ORDER BY oid
"""  # noqa: S608 # ours
# The file in a branch's directory that says that all views of the branch's data are read-only.
MARK = "views-closed"
# The names of Postgres's own roles up to Postgres 18, by their oids. Later ones begin with `pg_`.
OWN_ROLES = {
    3373: "pg_monitor",
    3374: "pg_read_all_settings",
    3375: "pg_read_all_stats",
    3377: "pg_stat_scan_tables",
    4200: "pg_signal_backend",
    4544: "pg_checkpoint",
    4550: "pg_use_reserved_connections",
    4569: "pg_read_server_files",
    4570: "pg_write_server_files",
    4571: "pg_execute_server_program",
    6171: "pg_database_owner",
    6181: "pg_read_all_data",
    6182: "pg_write_all_data",
    6304: "pg_create_subscription",
    6337: "pg_maintain",
    6392: "pg_signal_autovacuum_worker",
}
# Roles with another name than Postgres, or the platform, gave them, and roles that are members of
# what the platform gives to none: files of the server and programs (4569 to 4571).
FORGED = """
SELECT oid::bigint FROM pg_authid
WHERE CASE WHEN oid BETWEEN 11 AND 16383
    THEN rolname !~ '^pg_' OR rolname <> coalesce(%s::jsonb ->> oid::text, rolname)
    ELSE rolname ~ '^pg_' OR rolname = 'perch_superuser' AND (
        oid = 10 OR rolsuper OR rolcanlogin OR rolreplication OR rolbypassrls) END
UNION ALL SELECT member::bigint FROM pg_auth_members
WHERE roleid BETWEEN 4569 AND 4571 AND member >= 16384
ORDER BY 1 LIMIT 1
"""


class RolesForged(Exception):
    """The roles in the compute's catalog are not as Postgres and the platform made them: nothing
    may be granted there by name. The message says which role."""


def refuse_forged(connection: Session) -> None:
    """Raises RolesForged, psycopg.Error."""
    found = connection.execute(FORGED, [json.dumps(OWN_ROLES)]).fetchone()
    if found is not None:
        raise RolesForged(
            f"the role with the oid {found[0]} has a name or rights that neither Postgres nor "
            "Perch has given it, so nothing is granted on this branch any more: restore the branch "
            "from before"
        )


def close_views(branch_id: str, socket_dir: Path) -> None:
    """Make the system views of the branch's data read-only, unless a file beside the data says that
    they are. The branch's compute listens in the directory. Raises psycopg.Error.

    New branches, being copies of the template, have them so; those of earlier releases have not,
    nor has what is restored from their past."""
    mark = branch_dir(branch_id) / MARK
    if not mark.exists():
        close_views_in(socket_dir)
        mark.touch()


def close_views_in(socket_dir: Path) -> None:
    """Do so in every database of the cluster that listens there. Raises psycopg.Error.

    The database of the outer session comes last, and so tells that all others are done: only a
    superuser can drop or copy it. A client may create a database meanwhile, by copying one whose
    views can still be written. The next look finds it, since our session in a database begins only
    after those who copy it have ended."""
    with session(socket_dir) as connection:
        if connection.execute(IS_CLOSED).fetchone() is not None:
            return
        close_again(connection)
        done, known = list[int](), 0
        while rows := connection.execute(DATABASES, [done]).fetchall():
            # A client may go on creating others, which is no progress.
            known = known or len(rows)
            for database in (DatabaseRow.of(*row) for row in rows):
                with session_in(socket_dir, connection, database) as inside:
                    if inside.execute(IS_CLOSED).fetchone() is None:
                        inside.execute(CLOSE.encode())
                done.append(database.oid)
                if len(done) <= known:
                    report_progress()
        connection.execute(CLOSE.encode())
