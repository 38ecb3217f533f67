"""The arguments and environment that `manage.py pg_dump`, `pg_restore` and `psql` give their
programs."""

import os
from pathlib import Path

import pytest

from controlplane.management.commands.pg_restore import Command as PgRestore
from controlplane.management.postgres_programs import Way, environment_for

WAY = Way("127.0.0.1", 6432, "ep-a-b-1", "ann", "shop", "p:w\\d", 18)


def test_the_password_file_is_for_this_host_and_role_only() -> None:
    environment = environment_for(WAY, {"PGUSER": "bob", "PGPASSWORD": "x", "LANG": "C"})
    file = Path(environment.pop("PGPASSFILE"))
    assert file.read_text() == "127.0.0.1:6432:*:ann:p\\:w\\\\d\n"
    assert file.stat().st_mode & 0o777 == 0o600
    os.close(int(file.name))
    assert environment == {
        "PGHOST": "127.0.0.1",
        "PGPORT": "6432",
        "PGUSER": "ann",
        "PGDATABASE": "shop",
        "PGOPTIONS": "endpoint=ep-a-b-1",
        "LANG": "C",
    }


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], ["--dbname=shop"]),
        (["-Fc", "--clean", "birds.dump"], ["--dbname=shop"]),
        (["-dother"], []),
        (["--file=-", "birds.dump"], []),
        (["-l"], []),
        (["--help"], []),
    ],
)
def test_pg_restore_restores_by_default(arguments: list[str], told: list[str]) -> None:
    assert list(PgRestore().told(WAY, arguments)) == told
