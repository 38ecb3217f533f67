"""Which versions of Postgres and which extensions a host has, and which it refuses."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.compute.extensions import offered_extensions
from controlplane.compute.host import binaries
from controlplane.compute.host.accounts import shared_account
from controlplane.compute.host.binaries import (
    PostgresUnusable,
    check_programs,
    default_major,
    majors,
    postgres_bin,
)
from controlplane.environment import envmajors
from tests.support.majors import debians_postgres
from tests.support.stack import new_directory

# What another major version's `postgres` answers.
ANSWERS = "#!/bin/sh\necho 'postgres (PostgreSQL) {}.3'\n"


@pytest.fixture
def place() -> Iterator[Path]:
    with new_directory() as directory:
        yield directory


def programs(place: Path, major: int, *names: str) -> Path:
    """A directory with a `postgres` of the major version, and other programs that do nothing."""
    place.mkdir(mode=0o755)
    for name in ("postgres", *names):
        (place / name).write_text(ANSWERS.format(major))
        (place / name).chmod(0o755)
    return place


def test_a_host_has_its_default_and_the_named_ones(settings: Any) -> None:
    debians = debians_postgres()
    settings.POSTGRES_BINS = {15: str(debians)}
    check_programs()
    assert majors() == [15, 18]
    assert postgres_bin(15) == debians
    assert postgres_bin(18) == postgres_bin()
    with pytest.raises(PostgresUnusable, match="this host has no Postgres 16"):
        postgres_bin(16)


@pytest.mark.parametrize(
    ("named", "found", "names", "words"),
    [
        (14, 14, binaries.PROGRAMS, "Perch needs Postgres 15 or newer; this is 14"),
        (16, 17, binaries.PROGRAMS, "the programs there are of Postgres 17.3"),
        (20, 20, binaries.PROGRAMS, "Perch knows no Postgres after 19; this is 20"),
        (17, 17, binaries.PROGRAMS[1:], "lacks initdb"),
    ],
)
def test_a_postgres_that_cannot_be_used_is_named(
    settings: Any, place: Path, named: int, found: int, names: tuple[str, ...], words: str
) -> None:
    settings.POSTGRES_BINS = {named: str(programs(place / "bin", found, *names))}
    with pytest.raises(PostgresUnusable, match=words) as refused:
        check_programs()
    assert str(refused.value).startswith(f"PERCH_POSTGRES_BINS: {named}={place}/bin: ")


@pytest.mark.parametrize("version", ["19.0", "19beta1", "19rc1"])
def test_the_newest_major_version_is_not_refused(settings: Any, place: Path, version: str) -> None:
    """As far as that can be shown without its programs."""
    found = programs(place / "bin", 19, *binaries.PROGRAMS)
    (found / "postgres").write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n")
    settings.POSTGRES_BINS = {19: str(found)}
    check_programs()
    assert majors() == [18, 19]
    assert binaries.postgres_version(19) == version


def test_programs_that_are_not_there_are_named(settings: Any) -> None:
    settings.POSTGRES_BINS = {15: "/no/such/bin"}
    with pytest.raises(PostgresUnusable, match=r"PERCH_POSTGRES_BINS: 15=/no/such/bin: .*No such"):
        check_programs()


@pytest.mark.parametrize("text", ["/usr/bin", "15", "15=bin", "new=/usr/bin"])
def test_a_setting_that_cannot_be_read_is_refused(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("PERCH_POSTGRES_BINS", text)
    with pytest.raises(ValueError, match="PERCH_POSTGRES_BINS must be as"):
        envmajors("PERCH_POSTGRES_BINS")


@pytest.fixture
def asked_anew(tmp_path: Path, settings: Any) -> Iterator[None]:
    settings.STATE_DIR = tmp_path
    (tmp_path / "locks").mkdir()
    for asked in (shared_account, offered_extensions):
        asked.cache_clear()
    yield
    for asked in (shared_account, offered_extensions):
        asked.cache_clear()


def offered() -> set[str]:
    ours, system = offered_extensions(default_major()).control_path.split(":")
    assert system == "$system"
    controls = list((Path(ours) / "extension").glob("*.control"))
    assert all("trusted = true" in control.read_text() for control in controls)
    return {control.stem for control in controls}


@pytest.mark.usefixtures("asked_anew")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has accounts to give")
def test_computes_with_separate_accounts_may_connect_to_others() -> None:
    assert {"vector", "pg_stat_statements", "dblink", "postgres_fdw"} <= offered()
    assert offered() & {"file_fdw", "pageinspect", "refint", "hstore"} == set()


@pytest.mark.usefixtures("asked_anew")
def test_computes_with_a_shared_account_may_not_connect(settings: Any) -> None:
    settings.COMPUTE_ACCOUNT = "daemon"
    assert {"vector", "pg_stat_statements"} <= offered()
    assert offered() & {"dblink", "postgres_fdw"} == set()
