"""The version of this Perch, and the metadata: how to connect to it, and whether it belongs to this
version. Every process checks that at its start, also `backup` and `restore`, so that none uses the
metadata of another version. The exception is a rolling upgrade: a newer version notes in the
database beside which older ones it runs, and their processes may start on it.
"""

from collections.abc import Collection, Set
from functools import cache
from importlib import metadata

import psycopg
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from psycopg.conninfo import make_conninfo

CONNECT_TIMEOUT = 10  # seconds
MAX_NAMED = 3

# The last migration of the oldest version whose processes may run on a database with all migrations
# of this one, by the name that they know. A release moves it to the last migration of the release
# before it; CONTRIBUTING.md says what that allows and forbids.
RUNS_BESIDE = "0046_peers"
# The comment on Django's table of migrations that tells it to older versions.
_NOTE = "runs beside "
# The app whose tables were the queue of releases up to 0.2.
FORMER_QUEUE = "procrastinate"
TOO_OLD = (
    "of a Perch older than 0.2.0: upgrade that to 0.2.0 first, and then to this version; or of a "
    "state of Perch between two releases, which cannot be upgraded"
)

Migration = tuple[str, str]


class OtherVersion(Exception):
    """The database belongs to another version of Perch. The message says what to do."""


@cache
def perch_version() -> str:
    """The version of this Perch."""
    try:
        return metadata.version("perch-postgres")
    except metadata.PackageNotFoundError:  # Perch runs from its source, without being installed
        return "unknown"


def conninfo() -> str:
    """The connection parameters of Django's database as a libpq connection string."""
    parameters = connection.get_connection_params()
    for ours in ("context", "cursor_factory", "pool", "prepare_threshold"):
        parameters.pop(ours, None)
    return make_conninfo(**parameters)


def is_too_old(migrations: Set[str]) -> bool:
    """True if a database with these migrations, named as "controlplane.0001_initial", has some of
    those that one migration replaces, and not all: it is of a release before 0.2.0, whose schema is
    the first that this version can upgrade, or of none."""
    for one in MigrationLoader(None).disk_migrations.values():
        squashed = set(map(".".join, one.replaces))
        if 0 < len(squashed & migrations) < len(squashed):
            return True
    return False


def unknown_migrations(names: Collection[str]) -> list[str]:
    """Those of the names, as "controlplane.0001_initial", that only a newer version can have."""
    found = {(app, name) for app, _, name in (one.partition(".") for one in names)}
    return sorted(map(".".join, _unknown(MigrationLoader(None), found)))


def applied_migrations() -> set[str]:
    """The names of all migrations that the database has applied. Raises
    psycopg.OperationalError."""
    return set(map(".".join, _applied()))


def refuse_unknown() -> None:
    """Raises OtherVersion if a newer Perch has migrated the database and does not run beside this
    one, or if the database is too old to be upgraded; and psycopg.OperationalError."""
    _refuse_unknown(MigrationLoader(None), _applied(), beside=True)


def refuse_other_version(*, beside: bool = False) -> None:
    """Raises OtherVersion if the database has not applied exactly the migrations of this version,
    and psycopg.OperationalError. If `beside`, those of a newer Perch that runs beside this one are
    accepted. Leaves no connection open, because the caller may fork afterwards."""
    applied = _applied()
    loader = MigrationLoader(None)
    _refuse_unknown(loader, applied, beside=beside)
    lacking = loader.graph.nodes.keys() - applied - _squashed(loader, applied)
    if missing := sorted(map(".".join, lacking)):
        raise OtherVersion(
            f"the database lacks {len(missing)} migrations of this Perch, the first of them "
            f"{missing[0]}: run `manage.py migrate` (`up` does this itself). If processes of an "
            "older version run, docs/how-to/upgrade.md says which of them to stop first"
        )


def record_compatibility(**_: object) -> None:
    """After a migration: note in the database beside which older versions this one runs, unless a
    newer version has migrated it too."""
    loader = MigrationLoader(connection)
    applied = set(loader.applied_migrations)
    if loader.graph.nodes.keys() <= applied and not _unknown(loader, applied):
        with connection.cursor() as cursor:
            cursor.execute(f"COMMENT ON TABLE django_migrations IS '{_NOTE}{RUNS_BESIDE}'")


def _refuse_unknown(loader: MigrationLoader, applied: set[Migration], *, beside: bool) -> None:
    if is_too_old({*map(".".join, applied)}):
        raise OtherVersion(f"the database is {TOO_OLD}")
    unknown = sorted(map(".".join, _unknown(loader, applied)))
    if unknown and not (beside and ("controlplane", _recorded_compatibility()) in _known(loader)):
        raise OtherVersion(
            f"the database was migrated by a newer Perch: it has "
            f"{', '.join(unknown[:MAX_NAMED])}. Install "
            "that version, or restore the backup that was made before the upgrade"
        )


def _recorded_compatibility() -> str:
    """What the version that migrated the database last has noted; "" if it noted nothing."""
    with psycopg.connect(conninfo(), connect_timeout=CONNECT_TIMEOUT) as session:
        row = session.execute(
            "SELECT obj_description('django_migrations'::regclass, 'pg_class')"
        ).fetchone()
    return str(row[0] or "").removeprefix(_NOTE) if row else ""


def _unknown(loader: MigrationLoader, migrations: set[Migration]) -> set[Migration]:
    found = migrations - _known(loader)
    return {(app, name) for app, name in found if app != FORMER_QUEUE}


def _known(loader: MigrationLoader) -> set[Migration]:
    replaced = (key for one in loader.disk_migrations.values() for key in one.replaces)
    return {*loader.disk_migrations, *replaced}


def _squashed(loader: MigrationLoader, applied: set[Migration]) -> set[Migration]:
    """The migrations of which all that they replace are applied."""
    found = loader.disk_migrations.items()
    return {key for key, one in found if one.replaces and applied.issuperset(one.replaces)}


def _applied() -> set[Migration]:
    with psycopg.connect(conninfo(), connect_timeout=CONNECT_TIMEOUT) as session:
        present = session.execute("SELECT to_regclass('django_migrations')").fetchone()
        if present == (None,):
            return set()
        rows = session.execute("SELECT app, name FROM django_migrations").fetchall()
    return {(str(app), str(name)) for app, name in rows}
