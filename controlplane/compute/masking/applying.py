"""Makes the data of a branch from its parent's, with the values masked that its rules name.

The data is made in a staging directory, by a Postgres that only we reach, and gets its place once
it is masked, rewritten and scanned. So nobody can connect to values that are not masked, and no
file of the branch holds one: VACUUM FULL writes all tables, indexes and statistics anew, and the
log of that is replaced by an empty one.

Whatever clients wrote, such as an index's expression or a domain's check, is evaluated by a role
that may do what the table's owner may, and no more. No trigger and no rule acts on the rows.
"""

import os
import secrets
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, LiteralString

import psycopg
from django.conf import settings
from psycopg import sql

from controlplane import clock
from controlplane.compute.data import branch_data
from controlplane.compute.host.accounts import Account, running_as
from controlplane.compute.host.binaries import major_at, major_of, postgres_bin
from controlplane.compute.host.patience import report_progress
from controlplane.compute.host.progress import LOOK_INTERVAL, Movement, Watch
from controlplane.compute.host.space import require_reserve
from controlplane.compute.host.steps import Step, step
from controlplane.compute.host.tree import open_directory
from controlplane.compute.masking.functions import Rule, RuleRefused
from controlplane.compute.masking.planning import Table, plan_of
from controlplane.compute.masking.tables import mask_table, refusal
from controlplane.compute.processes.recovery import is_to_recover
from controlplane.compute.processes.session import Session, pinned_options, session
from controlplane.compute.schemas.schema_only import UNSAFE
from controlplane.compute.schemas.schema_restoring import CopyInterrupted
from controlplane.compute.workshop import MAX_PREPARED_TRANSACTIONS, serving, sockets_of

# Seconds that one statement may take, and that its server may make no progress.
STATEMENT_TIMEOUT, STALL_TIMEOUT = 6 * 3600.0, 50.0
RESET_WAL_TIMEOUT = 60.0
# In one transaction, each large object that is removed takes a lock.
UNLINK = "SELECT lo_unlink(oid) FROM (SELECT oid FROM pg_largeobject_metadata LIMIT 1000) AS l"
# If it does not survive a crash, it is made again. Its messages could have values.
PRIVATE = {
    **UNSAFE,
    "max_prepared_transactions": str(MAX_PREPARED_TRANSACTIONS),
    "log_min_messages": "panic",
    "log_min_error_statement": "panic",
    "log_statement": "none",
}
DATABASES = """
SELECT datname, datallowconn, datconnlimit = -2 FROM pg_database
WHERE datname <> 'template0' ORDER BY oid
"""
# What would lead to values elsewhere, or act on rows: a copy needs none of it.
REMOVED = {
    "prepared transactions": """
SELECT format('ROLLBACK PREPARED %L', gid) FROM pg_prepared_xacts
WHERE database = current_database()""",
    "subscriptions": """
SELECT format('ALTER SUBSCRIPTION %1$I DISABLE; ALTER SUBSCRIPTION %1$I SET (slot_name = NONE); '
    'DROP SUBSCRIPTION %1$I', subname) FROM pg_subscription
WHERE subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())""",
    "user mappings": """
SELECT format('DROP USER MAPPING FOR %s SERVER %I',
    CASE umuser WHEN 0 THEN 'PUBLIC' ELSE umuser::regrole::text END, srvname)
FROM pg_user_mappings""",
}
VIEWS = """
SELECT n.nspname, c.relname, r.rolname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
JOIN pg_roles r ON r.oid = relowner WHERE relkind = 'm' AND relispopulated ORDER BY c.oid
"""
# In place of {} come the masker and the owner.
ADMIT: Sequence[LiteralString] = (
    "CREATE ROLE {0} LOGIN",
    "GRANT {1} TO {0}",
    "ALTER ROLE {0} SET session_replication_role = 'replica'",
)
SCHEMAS = """
SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
"""


@dataclass(frozen=True)
class Masking:
    """How a branch is masked: the rules, what happens to columns that may hold text and have none
    ("refuse", "null" or "keep"), and the project's secret."""

    rules: Sequence[Rule]
    policy: str
    secret: str


def copy_masked(
    masking: Masking, branch_id: str, parent: Path, staging: Path, account: Account
) -> dict[str, Any]:
    """Copy the data directory of another branch, which may be running, and mask the copy. Returns
    what was done, for the attestation. The caller holds the name of the staging directory, and has
    ended what a dead worker left there (`workshop.making`).

    Raises RuleRefused, CopyInterrupted, NotEnoughSpace, StartFailed, psycopg.Error, OSError.
    """
    copied_at = clock.now()
    branch_data.copy_branch(parent, staging, account)
    branch_data.grant_access(staging, account)
    with serving(branch_data.staging_id(branch_id), sockets_of(branch_id), PRIVATE) as sockets:
        databases = _mask_cluster(sockets, masking)
    data = staging / "data"
    if is_to_recover(data):
        raise CopyInterrupted("the Postgres that masks the data did not shut down cleanly")
    _empty_log(data, account)
    return {
        "copied_at": copied_at.isoformat(),
        "policy": masking.policy,
        "rules": list(masking.rules),
        "databases": databases,
    }


def _mask_cluster(sockets: Path, masking: Masking) -> list[dict[str, Any]]:
    with session(sockets) as platform:
        found = platform.execute(DATABASES).fetchall()
        for name, _, is_half_dropped in found:
            if is_half_dropped:
                platform.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(str(name))))
    names = [str(name) for name, _, is_half_dropped in found if not is_half_dropped]
    if others := {rule["database_name"] for rule in masking.rules} - set(names):
        raise RuleRefused(f'a masking rule names the database "{min(others)}", which is not there')
    for name, lets_in, is_half_dropped in found:
        if not (lets_in or is_half_dropped):
            raise RuleRefused(
                f'the database "{name}" accepts no connections, so it cannot be masked: set its '
                "ALLOW_CONNECTIONS to true, or drop it"
            )
    reports: dict[str, dict[str, Any]] = {}
    plans = {}
    for name in names:
        with _long_session(sockets, name) as platform:
            rules = [rule for rule in masking.rules if rule["database_name"] == name]
            plans[name] = plan_of(platform, name, rules, masking.policy)
            reports[name] = {"name": name, "removed": _remove(platform, name, masking.policy)}
    with step("masking", tables=sum(map(len, plans.values()))) as masked:
        for name, tables in plans.items():
            reports[name]["tables"] = _mask_database(sockets, name, tables, masking, masked)
    with step("rewriting"):
        for name in names:
            with _long_session(sockets, name) as platform:
                platform.execute("VACUUM (FULL, ANALYZE)")
    return list(reports.values())


def _remove(platform: Session, name: str, policy: str) -> dict[str, int]:
    """Remove from the database what the copy does not need. Returns how many there were of each."""
    removed = {}
    for what, statements in REMOVED.items():
        rows = platform.execute(statements.encode()).fetchall()
        for (statement,) in rows:
            platform.execute(str(statement).encode())
        removed[what] = len(rows)
    ((count,),) = platform.execute("SELECT count(*) FROM pg_largeobject_metadata").fetchall()
    if count and policy == "refuse":
        raise RuleRefused(
            f'the database "{name}" has {count} large objects, for which there are no masking '
            'rules: remove them, or change the project\'s masking_policy to "null", which leaves '
            'them out, or "keep"'
        )
    if count and policy == "null":
        removed["large objects"] = int(str(count))
        while platform.execute(UNLINK).fetchall():
            pass
    return {what: number for what, number in removed.items() if number}


def _mask_database(
    sockets: Path, name: str, tables: Sequence[Table], masking: Masking, progress: Step
) -> list[dict[str, Any]]:
    reports = []
    with _long_session(sockets, name) as platform:
        for owner in sorted({table.owner for table in tables}):
            with _masker(platform, sockets, name, owner) as masker:
                for table in tables:
                    if table.owner == owner and not table.is_partitioned:
                        reports.append(mask_table(platform, masker, name, table, masking.secret))
                        progress.detail["done"] = progress.detail.get("done", 0) + 1
        _refresh_views(platform, sockets, name)
    return sorted(reports, key=lambda report: (report["schema"], report["table"]))


@contextmanager
def _masker(platform: Session, sockets: Path, database: str, owner: str) -> Iterator[Session]:
    """A session of a role that may do what the owner may, and for which no trigger, no rule and no
    foreign key is checked. Raises RuleRefused for a superuser."""
    ((is_superuser,),) = platform.execute(
        "SELECT rolsuper FROM pg_roles WHERE rolname = %s", [owner]
    ).fetchall()
    if is_superuser:
        raise RuleRefused(
            f'the database "{database}" has tables or materialized views of the superuser '
            f'"{owner}": drop them'
        )
    name = f"perch_masker_{secrets.token_hex(8)}"
    role = sql.Identifier(name)
    for statement in ADMIT:
        platform.execute(sql.SQL(statement).format(role, sql.Identifier(owner)))
    grant = sql.SQL("GRANT CONNECT, TEMPORARY ON DATABASE {} TO {}")
    platform.execute(grant.format(sql.Identifier(database), role))
    for (schema,) in platform.execute(SCHEMAS).fetchall():
        usage = sql.SQL("GRANT USAGE ON SCHEMA {} TO {}")
        platform.execute(usage.format(sql.Identifier(str(schema)), role))
    try:
        with _long_session(sockets, database, user=name) as masker:
            yield masker
    finally:
        for statement in ("DROP OWNED BY {}", "DROP ROLE {}"):
            platform.execute(sql.SQL(statement).format(role))


@contextmanager
def _long_session(sockets: Path, database: str, *, user: str | None = None) -> Iterator[Session]:
    """A session whose statements may take long, as long as the server works. Not the platform's
    own if it names another `user`."""
    others: dict[str, Any] = {}
    if user is not None:
        options = pinned_options(
            STATEMENT_TIMEOUT,
            major_at(sockets),
            of_superuser=False,
            search_path="pg_catalog,pg_temp",
        )
        others = {"user": user, "options": options}
    with (
        open_directory(Path(settings.STATE_DIR) / "branches") as branches,
        session(
            sockets, database, bound=STATEMENT_TIMEOUT, watch=partial(_watch, branches), **others
        ) as connection,
    ):
        yield connection


def _watch(branches: int, server: int) -> Callable[[], None]:
    """What reports the progress of the server's process while it works, and raises psycopg.Error if
    it stands still, NotEnoughSpace if the disk fills up."""
    watch = Watch(server)
    moved_at = looked_at = monotonic()

    def look() -> None:
        nonlocal moved_at, looked_at
        now = monotonic()
        if now < looked_at + LOOK_INTERVAL:
            return
        looked_at = now
        require_reserve(branches)
        if watch.look() is not Movement.STANDS_STILL:
            moved_at = now
            report_progress()
        elif now > moved_at + STALL_TIMEOUT:
            raise psycopg.OperationalError("the statement made no progress")

    return look


def _refresh_views(platform: Session, sockets: Path, database: str) -> None:
    """Fill the materialized views from the masked tables. All are emptied first, so that none is
    filled from what another one had: what reads an empty one fails, and is tried again. Raises
    RuleRefused."""
    found = platform.execute(VIEWS).fetchall()
    views = [(sql.Identifier(str(schema), str(name)), str(owner)) for schema, name, owner in found]

    def refresh(view: sql.Identifier, owner: str, how: LiteralString) -> None:
        with _masker(platform, sockets, database, owner) as masker:
            masker.execute(sql.SQL("REFRESH MATERIALIZED VIEW {} " + how).format(view))

    for view, owner in views:
        refresh(view, owner, "WITH NO DATA")
    while views:
        failed = []
        for view, owner in views:
            try:
                refresh(view, owner, "WITH DATA")
            except psycopg.Error as error:
                failed.append((view, owner))
                refused = refusal(f"{database}.{view.as_string()}", error)
        if len(failed) == len(views):
            raise refused
        views = failed


def _empty_log(data: Path, account: Account) -> None:
    """Replace the log by an empty one, and remove the statistics of statements. The data was shut
    down in order, so it needs no log. Raises OSError, CopyInterrupted."""
    done = subprocess.run(
        [postgres_bin(major_of(data)) / "pg_resetwal", "--pgdata", data],
        capture_output=True,
        timeout=RESET_WAL_TIMEOUT,
        **running_as(account),
    )
    if done.returncode:
        raise CopyInterrupted("the log of the masked data could not be emptied")
    with open_directory(data) as inner, open_directory("pg_stat", dir_fd=inner) as statistics:
        for name in os.listdir(statistics):
            os.unlink(name, dir_fd=statistics)
