"""Archives of pg_dump are rewritten so that restoring them calls no function of an owner."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from controlplane.compute.binaries import postgres_bin
from controlplane.compute.dump_archive import Archive, ArchiveUnreadable
from controlplane.compute.schema import is_lock_timeout
from tests.support.bare_postgres import SUPERUSER, BarePostgres

SCHEMA = """
CREATE FUNCTION "a b"(text, OUT x int, OUT y int) LANGUAGE sql AS $$SELECT 1, 2 -- true body$$;
CREATE FUNCTION atomic(a int DEFAULT 3) RETURNS int IMMUTABLE BEGIN ATOMIC SELECT a + 42424242; END;
CREATE PROCEDURE does(INOUT a int) LANGUAGE plpgsql AS 'BEGIN a := 1; END -- true body';
CREATE TABLE t (a int, b int GENERATED ALWAYS AS (a + atomic()) STORED);
"""


def stand_in(name: bytes) -> bytes:
    return b"CREATE FUNCTION public." + name + b"() RETURNS int RETURN 7;"


@pytest.fixture
def source(bare_cluster: BarePostgres) -> Iterator[str]:
    """The connection string of a database with SCHEMA."""
    server = f"host={bare_cluster.directory} port={bare_cluster.port} user={SUPERUSER}"
    with psycopg.connect(f"{server} dbname=postgres", autocommit=True) as connection:
        connection.execute("CREATE DATABASE source TEMPLATE template0")
        with psycopg.connect(f"{server} dbname=source") as inside:
            inside.execute(SCHEMA)
        yield f"{server} dbname=source"
        connection.execute("DROP DATABASE source WITH (FORCE)")


def dump(source: str, *options: str) -> "subprocess.CompletedProcess[bytes]":
    program = [
        str(postgres_bin() / "pg_dump"),
        "--schema-only",
        "--format=custom",
        "--dbname",
        source,
    ]
    return subprocess.run([*program, *options], capture_output=True)


def statements(archive: bytes, tmp_path: Path) -> str:
    """Return what pg_restore would run."""
    (tmp_path / "archive").write_bytes(archive)
    program = [str(postgres_bin() / "pg_restore"), "--file=-", str(tmp_path / "archive")]
    return subprocess.run(program, check=True, capture_output=True, text=True).stdout


def functions(source: str) -> dict[int, bytes]:
    with psycopg.connect(source) as connection:
        found = connection.execute("SELECT oid, proname FROM pg_proc WHERE oid >= 16384")
        return {oid: stand_in(name.replace(" ", "_").encode()) for oid, name in found}


def test_bodies_of_functions_are_replaced_and_nothing_else(source: str, tmp_path: Path) -> None:
    archive = Archive(dump(source).stdout)
    rest = statements(archive.without_bodies(functions(source)), tmp_path)
    assert "true body" not in rest
    assert "42424242" not in rest
    assert "CREATE FUNCTION public.a_b() RETURNS int RETURN 7;" in rest
    assert "GENERATED ALWAYS AS ((a + public.atomic())) STORED" in rest
    alone = statements(archive.functions_alone(), tmp_path)
    assert alone.count("CREATE OR REPLACE") == 3
    assert alone.count("true body") == 2
    assert "42424242" in alone
    assert "CREATE TABLE" not in alone
    assert "search_path" in alone


def test_a_function_without_a_replacement_is_an_error(source: str) -> None:
    with pytest.raises(KeyError):
        Archive(dump(source).stdout).without_bodies({})


def test_an_incomplete_archive_is_refused(source: str) -> None:
    content = dump(source).stdout
    for broken in (b"", b"-- SQL", content[:40], content[: len(content) // 2]):
        with pytest.raises(ArchiveUnreadable):
            Archive(broken)
    with pytest.raises(ArchiveUnreadable, match=r"version 1\.99"):
        Archive(content[:6] + b"\x63" + content[7:])


def test_a_held_lock_is_distinguished_from_other_failures(source: str) -> None:
    with psycopg.connect(source) as holder:
        holder.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        assert is_lock_timeout(dump(source, "--lock-wait-timeout=100").stderr.decode())
    assert not is_lock_timeout(dump(source, "--lock-wait-timeout=100").stderr.decode())
    assert not is_lock_timeout(dump(source + "x").stderr.decode())
