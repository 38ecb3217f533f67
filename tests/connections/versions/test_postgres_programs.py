"""`manage.py pg_dump`, `pg_restore` and `psql` with an endpoint, as its operator runs them."""

import os
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.support.place import Place
from tests.support.stack import ROOT
from tests.support.waiting import wait_for


def run(
    place: Place,
    *command: str,
    read: bytes = b"",
    state: int = 0,
    **environment: Any,
) -> "subprocess.CompletedProcess[bytes]":
    """Run the command and check its exit status."""
    name, *arguments = command
    ran = subprocess.run(
        [
            sys.executable,
            ROOT / "manage.py",
            name,
            "--state-dir",
            place.stack.state_dir,
            *arguments,
        ],
        input=read,
        capture_output=True,
        env={**os.environ, **environment},
        timeout=120,
    )
    assert ran.returncode == state, ran.stderr.decode()
    return ran


def test_a_dump_of_an_idle_endpoint_is_restored(shop: Place) -> None:
    """From standard output to standard input, without a change of a byte."""
    with shop.connect() as connection:
        connection.execute(
            "CREATE TABLE birds AS SELECT i, sha256('wren') AS mark FROM generate_series(1, 5000) i"
        )
    made = {"database": {"name": "copy", "owner_name": shop.role}}
    shop.done(shop.client.post(shop.branch_path(rest="/databases"), made))
    shop.suspend()
    # A dump is not possible through a pooler's transactions.
    archive = run(shop, "pg_dump", f"{shop.endpoint_id}-pooler", "-Fc", "--table=birds").stdout
    run(shop, "pg_restore", "--database", "copy", shop.endpoint_id, "--no-owner", read=archive)
    assert shop.query("SELECT count(*) FROM birds", dbname="copy") == (5000,)


@pytest.mark.thorough
def test_the_programs_output_is_passed_on(shop: Place) -> None:
    """Its output, its errors and its exit status; and the caller's own session settings apply."""
    asked = b"SHOW work_mem;\nSELECT 1/0;\nSELECT 'not reached';\n"
    ran = run(
        *(shop, "psql", shop.endpoint_id, "-XqAt", "-v", "ON_ERROR_STOP=1", "-f", "-"),
        read=asked,
        state=3,
        PGOPTIONS="-c work_mem=7MB",
        PGHOST="elsewhere.example.com",
        PGSSLMODE="verify-full",
        PGPASSWORD="another's",
    )
    assert ran.stdout == b"7MB\n"
    assert b"division by zero" in ran.stderr


@pytest.mark.thorough
def test_it_uses_the_pooler_if_possible_and_shows_no_password(shop: Place) -> None:
    script = b"SELECT current_user;\n\\! cat /proc/$PPID/cmdline /proc/$PPID/environ\n"
    ran = run(shop, "psql", f"{shop.endpoint_id}-pooler", "-XqAt", read=script)
    assert ran.stdout.startswith(f"{shop.role}\n".encode())
    assert f"endpoint={shop.endpoint_id}-pooler".encode() in ran.stdout
    assert shop.password.encode() not in ran.stdout


@pytest.mark.thorough
def test_the_version_is_that_of_the_computes(shop: Place) -> None:
    (served,) = shop.query("SHOW server_version")
    told = run(shop, "pg_dump", shop.endpoint_id, "--version").stdout.decode()
    assert re.search(r"[\d.]+$", told.strip())[0] == served  # type: ignore[index]


@pytest.mark.thorough
def test_a_password_that_is_not_stored_comes_from_the_caller(shop: Place) -> None:
    with shop.connect() as connection:
        connection.execute("CREATE ROLE ann LOGIN PASSWORD 'by sql'")
    path = shop.of_catalog("roles", "ann")
    wait_for(lambda: shop.client.call("GET", path).ok, "the role to be taken in")
    asked = ("-XAt", "-w", "-c", "SELECT current_user")
    arguments = ("psql", "--role", "ann", shop.endpoint_id, *asked)
    assert run(shop, *arguments, PGPASSWORD="by sql").stdout == b"ann\n"
    assert b"no password supplied" in run(shop, *arguments, state=2).stderr


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["ep-none-such-1"], {}, 'unknown endpoint "ep-none-such-1"'),
        (["--role", "nobody", "{}"], {}, "role not found"),
        (["--database", "nothing", "{}"], {}, "database not found"),
        (["{}"], {"PERCH_PLAIN_CONNECTIONS": "never"}, "PERCH_PLAIN_CONNECTIONS=never"),
        (["{}"], {"PERCH_HOST_NAME": "elsewhere"}, 'the endpoint is on the host "local"'),
    ],
)
def test_errors_for_what_it_cannot_connect_to(
    shop: Place, arguments: list[str], environment: dict[str, Any], words: str
) -> None:
    named = [argument.format(shop.endpoint_id) for argument in arguments]
    assert words in run(shop, "psql", *named, state=1, **environment).stderr.decode()
