"""Starts a compute with each allowed Postgres setting at its extremes, and does with it what the
platform does. `python -m tests.controlplane.settings_extremes [--size CU] [NAME …]` tries each
value alone, which takes seconds for each of about 450 values. The tests try many at once."""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import django
import psutil
import psycopg
from django.conf import settings

from controlplane.compute import compute, observation
from controlplane.compute.catalog.applying import CatalogSpec, DatabaseSpec, RoleSpec, apply_catalog
from controlplane.compute.data import branch_data
from controlplane.compute.data.known_settings import ask_postgres
from controlplane.compute.data.state_directory import prepare_state_directory
from controlplane.compute.host.binaries import default_major
from controlplane.compute.processes.session import session, socket_dir
from controlplane.compute.schemas.schema import schema_as_sql
from controlplane.compute.settings.configuration import ComputeSpec
from controlplane.compute.settings.postgres_settings import (
    ALLOWED,
    complaint,
    from_json,
    written_range,
)

MIB = 1 << 20
BRANCH, COPY = "br-extreme", "br-extreme-copy"
ENDPOINT = "ep-extreme"
OWNER, DATABASE = "neondb_owner", "neondb"
CATALOG = CatalogSpec([RoleSpec(OWNER, True)], [DatabaseSpec(DATABASE, OWNER, None)])
# Values of settings that are not numbers. Those that the rules refuse are left out.
WORDS: Mapping[str, tuple[str, ...]] = {
    "client_encoding": ("SQL_ASCII", "LATIN1", "EUC_JP", "MULE_INTERNAL", "SJIS", "UTF8"),
    "createrole_self_grant": ("", "set, inherit"),
    "datestyle": ("", "SQL, YMD", "German", "ISO, DMY, ISO, DMY"),
    "default_text_search_config": ("", "pg_catalog.simple", "no.such", "'; SELECT 1; --"),
    "lc_messages": ("", "C", "POSIX"),
    "lc_monetary": ("", "C"),
    "lc_numeric": ("", "C"),
    "lc_time": ("", "C"),
    "log_connections": ("all", "", "receipt, authorization"),
    "output_plugin_libraries": ("", "wal2json"),
    "search_path": ("", '""', '"$user"', "pg_temp", "a" * 1000, 'no, "such "" one"', "\n\n"),
    "timezone": ("UTC", "<+99>-99", "-167:59:59", "INTERVAL '1'", "XYZ" + "4" * 50, "posixrules"),
    "timezone_abbreviations": ("Default", "India"),
}
# Settings of extensions, whose values the rules do not check.
OF_EXTENSIONS: Mapping[str, tuple[str, ...]] = {
    "auto_explain.log_min_duration": ("0", "plenty"),
    "hnsw.ef_search": ("1000", "-1"),
    "pg_stat_statements.save": ("off", "perhaps"),
    "pg_stat_statements.track": ("all", "nothing at all"),
    "pg_stat_statements.track_planning": ("on",),
    "plpgsql.extra_errors": ("all", "x" * 1000),
    "plpgsql.no_such": ("\\", "'", "\n", "é", "x" * 2000),
}


@dataclass(frozen=True)
class Case:
    name: str
    value: str


@dataclass(frozen=True)
class Found:
    """What failed with these settings."""

    settings: Mapping[str, str]
    words: str


def cases(max_cu: float) -> Iterator[Case]:
    """Yield every value to try that the rules allow."""
    known = from_json(ask_postgres(default_major()))
    for name in sorted(ALLOWED.keys() & known.keys()):
        one = known[name]
        values = list(WORDS.get(name, ()))
        if one.vartype in ("integer", "real"):
            values += filter(None, written_range(name, one, max_cu=max_cu))
        elif one.vartype == "bool":
            values += ["off", "on"]
        else:
            values += one.values if one.vartype == "enum" else ()
        for value in dict.fromkeys(values):
            if complaint(name, value, max_cu=max_cu, known=known) is None:
                yield Case(name, value)
    for name, words in OF_EXTENSIONS.items():
        yield from (Case(name, value) for value in words)


@contextmanager
def host() -> Iterator[None]:
    """Make this process keep branches in a directory of its own, and create one there."""
    with tempfile.TemporaryDirectory(prefix="perch-") as scratch:
        Path(scratch).chmod(0o711)
        before = settings.STATE_DIR, settings.SOCKET_DIR
        settings.STATE_DIR, settings.SOCKET_DIR = Path(scratch), Path(scratch, "sockets")
        try:
            prepare_state_directory()
            branch_data.create_from_template(BRANCH)
            _fill()
            yield
        finally:
            for branch_id in (BRANCH, COPY):
                compute.stop(branch_id)
            settings.STATE_DIR, settings.SOCKET_DIR = before


def tried(given: Mapping[str, str], max_cu: float) -> Found | None:
    """Start the compute with these settings. Returns None if everything that the platform does
    works."""
    try:
        try:
            compute.start(ComputeSpec(ENDPOINT, BRANCH, max_cu, max_cu, given))
            _use(max_cu)
        finally:
            compute.stop(BRANCH)
    except Exception as error:
        return Found(given, f"{type(error).__name__}: {error}"[:600])
    return None


def culprits(given: Mapping[str, str], max_cu: float) -> list[Found]:
    """Find the smallest sets of these settings that fail, by halving."""
    found = tried(given, max_cu)
    if found is None or len(given) == 1:
        return [found] if found else []
    rows = list(given.items())
    halves = dict(rows[: len(rows) // 2]), dict(rows[len(rows) // 2 :])
    return [one for half in halves for one in culprits(half, max_cu)] or [found]


def _fill() -> None:
    """Create a role, its database and a table in the branch."""
    compute.start(ComputeSpec(ENDPOINT, BRANCH, 0.25, 0.25))
    _apply_catalog()
    with session(socket_dir(ENDPOINT), DATABASE) as connection:
        connection.execute("CREATE TABLE public.kept AS SELECT generate_series(1, 1000) AS i")
    compute.stop(BRANCH)


def _use(max_cu: float) -> None:
    """Do what the platform does with a compute. Raises the error of what fails."""
    _apply_catalog()
    observation.look(ENDPOINT)
    measures = observation.measure(ENDPOINT, BRANCH)
    assert measures.logical_size > 1 * MIB, measures
    assert "CREATE TABLE public.kept" in schema_as_sql(ENDPOINT, BRANCH, DATABASE)
    with session(socket_dir(ENDPOINT), DATABASE) as connection:
        assert connection.execute("SELECT count(*) FROM public.kept").fetchone() == (1000,)
    memory = _memory(branch_data.data_dir(BRANCH))
    assert memory < max_cu * 4096 * MIB, f"{memory / MIB:.0f} MiB of memory while idle"
    _connect_as_owner()
    try:
        branch_data.create_from_parent(COPY, BRANCH)
    finally:
        branch_data.remove(COPY)


def _apply_catalog() -> None:
    failures = apply_catalog(socket_dir(ENDPOINT), CATALOG, [*CATALOG.roles, *CATALOG.databases])
    assert failures == {}, failures


def _connect_as_owner() -> None:
    """Check that a client can connect. The settings may affect only its own statements."""
    with psycopg.connect(
        host=str(socket_dir(ENDPOINT)),
        user=OWNER,
        dbname=DATABASE,
        client_encoding="UTF8",
        connect_timeout=10,
    ) as connection:
        with suppress(psycopg.Error):
            connection.execute("SELECT count(*) FROM public.kept")
        connection.rollback()


def _memory(data_dir: Path) -> int:
    """Return the bytes of memory that the processes of the Postgres use; shared memory counts
    once."""
    postmaster = psutil.Process(int((data_dir / "postmaster.pid").read_text().split()[0]))
    total = 0
    for process in (postmaster, *postmaster.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=float, default=0.25, help="compute units")
    parser.add_argument("names", nargs="*", help="of settings; all by default")
    asked = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    django.setup()
    failed = 0
    with host():
        for case in cases(asked.size):
            if asked.names and case.name not in asked.names:
                continue
            found = tried({case.name: case.value}, asked.size)
            failed += found is not None
            print(
                f"{case.name} = {case.value[:60]!r}: {found.words if found else 'ok'}", flush=True
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
