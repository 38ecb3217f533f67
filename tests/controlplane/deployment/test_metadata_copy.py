"""Perch's rows move between servers of other Postgres versions by `backup` and `restore`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings
from django.utils import timezone

from controlplane.backup.manifest import METADATA_DUMP, Manifest, write_manifest, write_sums
from controlplane.backup.metadata_copy import dump, snapshot
from controlplane.database.version import applied_migrations
from controlplane.models import Account, Host, Project
from tests.controlplane.rows import make_project
from tests.support import commands
from tests.support.bare_postgres import (
    SUPERUSER,
    BarePostgres,
    Programs,
    bare_postgres,
    private_directory,
)
from tests.support.majors import DEBIANS, debians_postgres
from tests.support.stack import new_directory

pytestmark = pytest.mark.slow

ROWS = "SELECT id FROM controlplane_project"


@pytest.fixture(scope="module")
def debian() -> Iterator[BarePostgres]:
    """A server of Debian's Postgres 15."""
    programs = debians_postgres()
    with private_directory() as scratch, bare_postgres(Programs(scratch, programs)) as cluster:
        cluster.start()
        yield cluster


def new_database(cluster: BarePostgres, name: str) -> str:
    """Create an empty database; return its URL."""
    cluster.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    cluster.execute(f"CREATE DATABASE {name}")
    return url_of(cluster, name, user=SUPERUSER)


def url_of(cluster: BarePostgres, name: str, *, user: str) -> str:
    return f"postgresql:///{name}?host={cluster.directory}&port={cluster.port}&user={user}"


def projects_in(cluster: BarePostgres, name: str) -> list[str]:
    with cluster.connect(dbname=name) as connection:
        return [row for (row,) in connection.execute(ROWS).fetchall()]


def ran(*arguments: str | Path, url: str, status: int = 0, **environment: str) -> str:
    known = {"DATABASE_URL": url, "PERCH_SECRET_KEY": settings.SECRET_KEY}
    return commands.ran(*arguments, status=status, **{**known, **environment})


@pytest.fixture
def place() -> Iterator[Path]:
    with new_directory() as directory:
        yield directory


@pytest.fixture
def backup(place: Path, account: Account, host: Host, transactional_db: None) -> Path:
    """A backup of the rows of this test's database, whose server is the wheel's."""
    make_project(account, host).branches.update(current_state="init")
    target, now = place / "backup", timezone.now()
    target.mkdir()
    manifest = Manifest("1", "18", "local", now, now, sorted(applied_migrations()), {})
    with snapshot() as seen:
        dump(target / METADATA_DUMP, snapshot=seen)
    (target / "secret-key").write_text(settings.SECRET_KEY)
    write_manifest(target, manifest)
    write_sums(target)
    return target


def test_rows_move_to_an_older_server(backup: Path, debian: BarePostgres, place: Path) -> None:
    url = new_database(debian, "older")
    ran("restore", backup, "--state-dir", place / "older", url=url)
    assert projects_in(debian, "older") == list(Project.objects.values_list("id", flat=True))


def test_a_server_that_refuses_the_tables_is_found_before_anything_is_copied(
    backup: Path, debian: BarePostgres, place: Path
) -> None:
    new_database(debian, "strict")
    debian.execute("DROP ROLE IF EXISTS reader")
    debian.execute("CREATE ROLE reader LOGIN")
    url = url_of(debian, "strict", user="reader")
    said = ran("restore", backup, "--state-dir", place / "new", url=url, status=1)
    assert "Postgres 15 does not take the rows" in said
    assert "permission denied for schema public" in said
    assert not (place / "new").exists()


@pytest.mark.thorough
def test_programs_that_are_too_old_are_found_before_anything_is_copied(
    backup: Path, debian: BarePostgres, bare_cluster: BarePostgres, place: Path
) -> None:
    old = {"PERCH_POSTGRES_BIN": str(DEBIANS)}
    url = new_database(bare_cluster, "fourth")
    ran("restore", backup, "--state-dir", place / "fourth", url=url)
    said = ran(
        *("backup", place / "other", "--state-dir", place / "fourth"), url=url, status=1, **old
    )
    assert "the server of DATABASE_URL is Postgres 18, and pg_dump here is of Postgres 15" in said
    empty = new_database(bare_cluster, "fifth")
    said = ran("restore", backup, "--state-dir", place / "new", url=empty, status=1, **old)
    assert "unsupported version" in said
    assert not (place / "new").exists()
