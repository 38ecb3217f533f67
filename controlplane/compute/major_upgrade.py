"""Makes data of a newer major version of Postgres from a branch's data, by pg_upgrade, and puts it
in the place of the old data.

The old data is only read. What pg_upgrade works on is a copy of it in the branch's staging
directory. pg_upgrade needs an account with a name, which branches' accounts do not have: all of
this host share `perch-upgrade`, one after the other, and its processes are killed before the next.
The complete new data waits beside the branch until the operation that made it switches all branches
of the project.

The catalogs are the owner's, and pg_upgrade restores the schema as a superuser. Postgres evaluates
immutable functions when it restores partition keys, generated columns and more. So every function
that a client could have written loses its body in the copy before pg_upgrade runs, and gets it back
as the last step, when nothing is evaluated any more. Sessions are pinned as our own are.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil
import psycopg
from django.conf import settings

from controlplane import durable
from controlplane.compute import branch_data
from controlplane.compute.account_processes import end_upgrade_account
from controlplane.compute.accounts import Account, give, launched_as, upgrade_account
from controlplane.compute.binaries import PostgresUnusable, major_of, postgres_bin
from controlplane.compute.branch_data import NoSuchBranchData, branch_dir, data_dir
from controlplane.compute.configuration import PLATFORM_ROLE
from controlplane.compute.extensions import has_extension
from controlplane.compute.filesystem import LockTimeout, forget_lock, lock_branches, remove_tree
from controlplane.compute.foreign_files import read_regular
from controlplane.compute.history.control_data import read_control_data
from controlplane.compute.limits import end_group, forget_limits, limit_compute
from controlplane.compute.occupants import end_processes_in
from controlplane.compute.patience import heed_cancel, progressed
from controlplane.compute.progress import Movement, wait_while_it_gets_on
from controlplane.compute.recovery import is_to_recover
from controlplane.compute.schema_only import STAND_INS, UNSAFE
from controlplane.compute.session import Session, pinned_options, session
from controlplane.compute.space import require_reserve
from controlplane.compute.state_directory import HBA_FILE
from controlplane.compute.steps import step
from controlplane.compute.tree import clone_tree, give_tree, open_directory
from controlplane.compute.workshop import MOST, end_workshop, serving, sockets_of

# What pg_upgrade runs, of the old and of the new major version.
OLD_PROGRAMS = ("pg_controldata", "pg_ctl", "pg_resetwal", "postgres")
NEW_PROGRAMS = (
    *OLD_PROGRAMS,
    *("initdb", "pg_dump", "pg_dumpall", "pg_restore", "pg_upgrade", "psql", "vacuumdb"),
)
# In the staging directory: the copy of the old data, and where pg_upgrade writes its own files.
OLD, WORK = "old", "work"
LOOK_UP = 0.5  # seconds between two looks whether the work was cancelled
STILL = 120.0  # seconds that pg_upgrade may make no progress
STATEMENT = 3600.0  # seconds for one of its statements
LONGEST_WORDS, LONGEST_REPORT = 3000, 800  # bytes
# What pg_upgrade writes about a check, and about restoring a database.
REPORT = re.compile(r"[a-z_0-9]+\.txt|pg_upgrade_dump_[0-9]+\.log")
MOST_NAMED = 5
# Slots that the platform makes for itself.
OWN_SLOT = "perch_"
# Databases that cannot be entered, which pg_upgrade refuses; Postgres's own template0 is none.
CLOSED = """
SELECT datname, datconnlimit = -2 FROM pg_database
WHERE datname <> 'template0' AND (NOT datallowconn OR datconnlimit = -2) ORDER BY oid
"""
DATABASES = "SELECT datname FROM pg_database WHERE datname <> 'template0' ORDER BY oid"
EXTENSIONS = "SELECT extname FROM pg_extension ORDER BY extname"
PREPARED = "SELECT count(*), min(gid) FROM pg_prepared_xacts"
# Functions that a client could have written, with a statement that takes their bodies and one that
# gives them back. Those of the platform's role were made by an extension's script. A partition key
# must not become constant, as it would with NULL in place of what such a function returns.
BODIES = f"""
SELECT f.oid::regprocedure::text, 'CREATE OR REPLACE' || substr(
        replace(stand_in, 'BEGIN RETURN NULL; END', format('BEGIN RETURN %s; END', CASE
            WHEN t.oid >= 16384 OR typtype <> 'b' THEN 'NULL' WHEN typcategory = 'N' THEN '0'
            WHEN typcategory = 'S' THEN '''''' WHEN typcategory = 'B' THEN 'false'
            WHEN t.oid IN ('date'::regtype, 'timestamp'::regtype, 'timestamptz'::regtype)
                THEN '''epoch''' ELSE 'NULL' END)), 7),
    pg_get_functiondef(f.oid)
FROM ({STAND_INS}) AS s(oid, stand_in) JOIN pg_proc f ON f.oid = s.oid
JOIN pg_language l ON l.oid = f.prolang JOIN pg_type t ON t.oid = f.prorettype
WHERE f.proowner <> 10 AND l.lanname NOT IN ('c', 'internal') ORDER BY f.oid
"""  # noqa: S608
# CREATE OR REPLACE forgets which extensions a function depends on.
DEPENDENCIES = """
SELECT format('ALTER ROUTINE %s DEPENDS ON EXTENSION %I', objid::regprocedure, extname)
FROM pg_depend JOIN pg_extension e ON e.oid = refobjid
WHERE classid = 'pg_proc'::regclass AND refclassid = 'pg_extension'::regclass AND deptype = 'x'
"""
# What an owner must not gain by the upgrade.
ROLES = """
SELECT rolname, rolsuper, rolcreaterole, rolcreatedb, rolcanlogin, rolreplication, rolbypassrls,
    rolpassword FROM pg_authid WHERE oid >= 16384 OR rolsuper ORDER BY oid
"""


class UpgradeRefused(Exception):
    """The branch's data cannot be of the other major version as it is; the message says why."""


class UpgradeFailed(Exception):
    """pg_upgrade, or what surrounds it, failed; the message has its words."""


@dataclass(frozen=True)
class _Function:
    """A function without its body."""

    name: str
    definition: bytes


@dataclass(frozen=True)
class _Disarmed:
    """What the copy of the old data contained before its functions lost their bodies."""

    # By the names of the databases.
    functions: dict[str, list[_Function]]
    dependencies: dict[str, list[bytes]]
    roles: list[tuple[object, ...]]


def upgraded_place(branch_id: str, key: str) -> Path:
    """Where the branch's new data waits; `key` names the operation."""
    return branch_dir(branch_id).with_name(f".{branch_id}.{key}")


def prepare(branch_id: str, key: str, *, to: int) -> bool:
    """Make the branch's data as it is of the major version `to`, beside the branch. Does nothing if
    it is there already; False if the branch needs none. The branch may run; then what it commits
    later is not included.

    Raises UpgradeRefused, UpgradeFailed, PostgresUnusable, NoSuchBranchData, AccountUnusable,
    NotEnoughSpace, TreeUntrusted, StartFailed, psycopg.Error, OSError.
    """
    source, place = data_dir(branch_id), upgraded_place(branch_id, key)
    if place.exists():
        return True
    if not source.exists():
        raise NoSuchBranchData(f"the branch {branch_id} has no data")
    before = major_of(source)
    if before == to:
        return False
    if before > to:
        raise UpgradeRefused(f"the branch's data is of Postgres {before}, which is newer")
    require_programs(before, to)
    _refuse_slots(source)
    workshop = branch_data.staging_id(branch_id)
    with lock_branches(workshop):
        try:
            _end_earlier(branch_id)
            with branch_data.new_branch(branch_id, place=place) as (staging, account):
                branch_data.let_in(staging, account)
                branch_data.copy_branch(source, staging, account)
                _upgrade(branch_id, account, before=before, to=to)
        finally:
            forget_lock(workshop)
    return True


def switch(branch_id: str, key: str) -> None:
    """Put the new data in the place of the old, which is removed. The branch does not run. May be
    called again after a crash; does nothing without new data."""
    place, fresh = branch_dir(branch_id), upgraded_place(branch_id, key)
    old = _replaced_place(branch_id, key)
    if fresh.exists():
        if place.exists():
            durable.rename(place, old)
        durable.rename(fresh, place)
    remove_tree(old)


def discard(branch_id: str, key: str) -> None:
    """End what a dead attempt has left running for the branch, and remove the new data. If a switch
    was cut off between its renames, the branch gets its old data back."""
    workshop = branch_data.staging_id(branch_id)
    with lock_branches(workshop):
        _end_earlier(branch_id)
        remove_tree(branch_dir(workshop))
        forget_lock(workshop)
    old = _replaced_place(branch_id, key)
    if old.exists() and not branch_dir(branch_id).exists():
        durable.rename(old, branch_dir(branch_id))
    remove_tree(old)
    remove_tree(upgraded_place(branch_id, key))


def require_programs(before: int, to: int) -> None:
    """Raise PostgresUnusable if this host lacks a program that the upgrade needs."""
    for major, programs in ((before, OLD_PROGRAMS), (to, NEW_PROGRAMS)):
        directory = postgres_bin(major)
        if missing := [one for one in programs if not (directory / one).exists()]:
            raise PostgresUnusable(
                f"this host's Postgres {major} lacks {', '.join(missing)}, which the upgrade needs"
            )


def _replaced_place(branch_id: str, key: str) -> Path:
    return branch_dir(branch_id).with_name(f".{branch_id}.{key}-replaced")


def _refuse_slots(source: Path) -> None:
    """Slots are not copied, so a subscriber would miss what it has not received yet."""
    with open_directory(source) as inside, open_directory("pg_replslot", within=inside) as slots:
        names = sorted(name for name in os.listdir(slots) if not name.startswith(OWN_SLOT))
    if names:
        raise UpgradeRefused(
            f"it has the replication slot {_named(names)}, which would be lost: drop it first, and "
            "let its subscriber copy the data anew afterwards"
        )


def _upgrade(branch_id: str, account: Account, *, before: int, to: int) -> None:
    workshop = branch_data.staging_id(branch_id)
    staging, data = branch_dir(workshop), data_dir(workshop)
    with _served(branch_id, account) as sockets, step("checking_catalog"):
        _refuse_what_cannot_go(sockets, to)
        found = _disarm(sockets)
    data.rename(staging / OLD)
    with _turn(branch_id), step("upgrading", **{"from": before, "to": to}):
        runner = Account(upgrade_account().uid, account.gid)
        give_tree(staging / OLD, account, runner)
        clone_tree(branch_data.template(to), data, owner=runner)
        _run_pg_upgrade(branch_id, runner, before=before, to=to)
    remove_tree(staging / OLD)
    remove_tree(staging / WORK)
    give_tree(data, runner, account)
    with _served(branch_id, account) as sockets, step("restoring_functions"):
        _rearm(sockets, found)
    for path in staging.glob("upgrade-*.conf"):
        path.unlink()


@contextmanager
def _turn(branch_id: str) -> Iterator[None]:
    """Wait for this host's other upgrades, since all use one account, and end what is left of the
    last one. At the end, end what pg_upgrade has left running."""
    with ExitStack() as held:
        while True:
            with suppress(LockTimeout):
                held.enter_context(lock_branches("upgrade", timeout=LOOK_UP))
                break
            heed_cancel()
            progressed()
        _end_processes(branch_id)
        try:
            yield
        finally:
            _end_processes(branch_id)


@contextmanager
def _served(branch_id: str, account: Account) -> Iterator[Path]:
    """Run Postgres on the data in the staging directory, for ourselves alone."""
    workshop = branch_data.staging_id(branch_id)
    data = data_dir(workshop)
    # Recovery fails with a lower setting.
    prepared = read_control_data(data, account).max_prepared_transactions
    chosen = {**UNSAFE, "max_prepared_transactions": str(prepared)}
    with serving(workshop, sockets_of(branch_id), chosen) as sockets:
        yield sockets
    if is_to_recover(data):
        raise UpgradeFailed("Postgres did not shut down in order")


def _refuse_what_cannot_go(sockets: Path, to: int) -> None:
    """Raise UpgradeRefused for what pg_upgrade or the new version cannot take over."""
    with session(sockets) as connection:
        for name, is_half_dropped in connection.execute(CLOSED):
            raise UpgradeRefused(
                f'the database "{name}" '
                + (
                    "was dropped only in part: drop it again"
                    if is_half_dropped
                    else "accepts no connections: set its ALLOW_CONNECTIONS to true, or drop it"
                )
            )
        for count, gid in connection.execute(PREPARED):
            if count:
                raise UpgradeRefused(
                    f'it has prepared transactions, such as "{gid}": commit or roll them back'
                )
        names = [str(name) for (name,) in connection.execute(DATABASES)]
    for name in names:
        with session(sockets, name, client_encoding="SQL_ASCII") as connection:
            found = [_text(extension) for (extension,) in connection.execute(EXTENSIONS)]
        if missing := [extension for extension in found if not has_extension(extension, to)]:
            raise UpgradeRefused(
                f'the database "{name}" has the extension {_named(missing)}, which Postgres {to} '
                "does not have on this host: drop it, or have the operator install it"
            )


def _disarm(sockets: Path) -> _Disarmed:
    """Take the bodies of all functions that clients could have written."""
    functions, dependencies = {}, {}
    with session(sockets) as connection:
        names = [str(name) for (name,) in connection.execute(DATABASES)]
        roles = connection.execute(ROLES).fetchall()
    for name in names:
        # No conversion: statements are in the database's own encoding.
        with session(sockets, name, client_encoding="SQL_ASCII") as connection:
            connection.execute("SET check_function_bodies = off")
            rows = connection.execute(BODIES.encode()).fetchall()
            dependencies[name] = [_bytes(row[0]) for row in connection.execute(DEPENDENCIES)]
            functions[name] = [_Function(_text(row[0]), _bytes(row[2])) for row in rows]
            for _, stand_in, _ in rows:
                connection.execute(_bytes(stand_in))
                progressed()
    return _Disarmed(functions, dependencies, roles)


def _rearm(sockets: Path, found: _Disarmed) -> None:
    """Give the functions their bodies back. Postgres evaluates none of them meanwhile."""
    for name, functions in found.functions.items():
        with session(sockets, name, client_encoding="SQL_ASCII") as connection:
            connection.execute("SET check_function_bodies = off")
            for function in functions:
                _define(connection, name, function)
            for statement in found.dependencies[name]:
                connection.execute(statement)
    with session(sockets) as connection:
        roles = connection.execute(ROLES).fetchall()
    if roles != found.roles:
        raise UpgradeFailed("the roles differ from those before")


def _define(connection: Session, database: str, function: _Function) -> None:
    try:
        connection.execute(function.definition)
    except psycopg.Error as error:
        if isinstance(error, psycopg.OperationalError):
            raise
        raise UpgradeRefused(
            f'the function {function.name} in the database "{database}" is not valid any more: '
            f"{error.diag.message_primary or error}"
        ) from error
    progressed()


def _run_pg_upgrade(branch_id: str, account: Account, *, before: int, to: int) -> None:
    """Raises UpgradeRefused with the words of pg_upgrade's own checks."""
    workshop, sockets = branch_data.staging_id(branch_id), sockets_of(branch_id)
    staging = branch_dir(workshop)
    for place in (staging / WORK, sockets):
        place.mkdir(mode=0o700)
        give(place, account)
    command: list[Path | str] = [
        postgres_bin(to) / "pg_upgrade",
        *("--old-bindir", postgres_bin(before), "--new-bindir", postgres_bin(to)),
        *("--old-datadir", staging / OLD, "--new-datadir", data_dir(workshop)),
        *("--username", PLATFORM_ROLE, "--socketdir", sockets),
        *("--old-port", "50432", "--new-port", "50433"),
        # The new data takes over the files of the copy, which is removed.
        *("--link", "--no-sync"),
        *("--old-options", _options(branch_id, "old", before)),
        *("--new-options", _options(branch_id, "new", to)),
    ]
    with tempfile.TemporaryFile() as output:
        with launched_as(account, command) as run:
            run["cwd"] = staging / WORK
            run["env"] = {**run["env"], "PGOPTIONS": pinned_options(STATEMENT, before)}
            process = subprocess.Popen(
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **run,
            )
        limit_compute(sockets.name, process.pid, max_cu=MOST)
        try:
            in_time = wait_while_it_gets_on(
                lambda: process.poll() is not None, _Watch(staging).look, still=STILL
            )
        finally:
            process.kill()
            process.wait()
        if not in_time:
            raise UpgradeFailed(f"pg_upgrade made no progress for {STILL:.0f} s")
        if process.returncode:
            raise UpgradeRefused(f"pg_upgrade refuses it: {_words(output, data_dir(workshop))}")


def _options(branch_id: str, name: str, major: int) -> str:
    """The options of a server that pg_upgrade starts: a configuration of ours alone."""
    lines = {
        "hba_file": settings.STATE_DIR / HBA_FILE,
        "listen_addresses": "",
        "shared_buffers": "64MB",
        # One transaction restores up to a thousand objects.
        "max_locks_per_transaction": "1024",
        "fsync": "off",
        "full_page_writes": "off",
        "autovacuum": "off",
        "max_logical_replication_workers": "0",
        "dynamic_shared_memory_type": "posix",
    }
    if major >= 17:
        lines["event_triggers"] = "off"
    text = "".join(f"{key} = '{value}'\n" for key, value in lines.items())
    workshop = branch_data.staging_id(branch_id)
    return f"-c config_file={branch_data.write_for(workshop, f'upgrade-{name}.conf', text)}"


class _Watch:
    """Looks at all processes that work in the staging directory: pg_upgrade and what it starts."""

    def __init__(self, staging: Path) -> None:
        self._staging = staging
        self._seen: set[tuple[int, float]] = set()

    def look(self) -> Movement:
        with open_directory(self._staging) as place:
            require_reserve(place)
        seen = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.cwd().startswith(f"{self._staging}/"):
                    times = process.cpu_times()
                    seen.add((process.pid, times.user + times.system))
        before, self._seen = self._seen, seen
        return Movement.GETS_ON if seen != before else Movement.STANDS_STILL


def _words(output: IO[bytes], data: Path) -> str:
    """The last words of pg_upgrade, of its checks' reports, and of the restore that failed."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - LONGEST_WORDS))
    said = [output.read()]
    # A link in place of the directory is not followed.
    for _, _, names, opened in os.fwalk(data / "pg_upgrade_output.d", follow_symlinks=False):
        said += [
            read_regular(name, LONGEST_REPORT, within=opened, from_end=True)
            for name in sorted(names)
            if REPORT.fullmatch(name)
        ]
    words = b"\n".join(said).decode(errors="replace")
    # Of a restore, only what it says from its error on.
    if error := re.search(r"pg_restore: error: .*?(?=^pg_restore: |\Z)", words, re.S | re.M):
        words = error[0]
    # The checks and steps that passed are not of interest.
    return " ".join(re.sub(r"(?m)^.*\bok *$|^[-*]+$|^pg_restore: creating .*$", "", words).split())


def _end_earlier(branch_id: str) -> None:
    """End what a dead attempt has left running, unless another upgrade holds the account: that has
    ended it."""
    with suppress(LockTimeout), lock_branches("upgrade", timeout=0):
        _end_processes(branch_id)
    end_workshop(branch_id)


def _end_processes(branch_id: str) -> None:
    """End pg_upgrade and all that it has started. The caller holds the lock of the upgrades. Raises
    StopFailed."""
    staging, sockets = branch_dir(branch_data.staging_id(branch_id)), sockets_of(branch_id)
    end_group(sockets.name)
    end_upgrade_account()
    if staging.exists():
        end_processes_in(staging)
    forget_limits(sockets.name)
    remove_tree(sockets)


def _named(names: list[str]) -> str:
    shown = ", ".join(f'"{name}"' for name in names[:MOST_NAMED])
    return shown + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")


def _bytes(value: object) -> bytes:
    assert isinstance(value, bytes)
    return value


def _text(value: object) -> str:
    return _bytes(value).decode(errors="replace")
