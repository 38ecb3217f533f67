"""A password in clear text, checked against what Postgres keeps of it."""

import base64
import string
import time

import pytest

from controlplane.proxy.authentication.passwords import MOST_ITERATIONS, check_password
from controlplane.proxy.authentication.scram import mock_verifier, parse_verifier
from tests.support.bare_postgres import BarePostgres

ODD = [
    "alice's secret",
    string.printable.strip(),
    "äß€😀",
    # What SASLprep makes another: a compatible character, blanks, what is not seen.
    "\u2168 \u00a0x\u00ady",
    # What it leaves alone: a control character, text that changes its direction.
    "bell\u0007é",
    "\u0627a\u0628",
    "\u0627\u0628",
    " ",
]


@pytest.mark.parametrize("password", ODD)
def test_what_postgres_made_of_a_password_fits_it_and_no_other(
    postgres: BarePostgres, password: str
) -> None:
    with postgres.connect() as connection:
        verifier = connection.pgconn.encrypt_password(
            password.encode(), b"alice", b"scram-sha-256"
        ).decode()
    assert check_password(verifier, password)
    assert check_password(parse_verifier(verifier), password.encode())
    for other in (password + "x", password[:-1], "", password.upper() + "ß"):
        assert not check_password(verifier, other)


def test_what_the_server_hashed_itself(postgres: BarePostgres) -> None:
    with postgres.connect() as connection:
        connection.execute("SET scram_iterations = 10000")
        connection.execute("CREATE ROLE hashed LOGIN PASSWORD 'it''s secret'")
    ((verifier,),) = postgres.execute("SELECT rolpassword FROM pg_authid WHERE rolname = 'hashed'")
    assert check_password(verifier, "it's secret")
    assert not check_password(verifier, "its secret")


def test_nothing_fits_what_is_no_verifier() -> None:
    for verifier in (None, "", "md5aabbcc", "SCRAM-SHA-256$x"):
        assert not check_password(verifier, "secret")
    assert not check_password(mock_verifier("ep/alice", b"key"), "secret")


def test_a_verifier_that_costs_too_much_is_not_tried() -> None:
    keys = base64.b64encode(bytes(32)).decode()
    costly = f"SCRAM-SHA-256${MOST_ITERATIONS * 1000}:c2FsdA==${keys}:{keys}"
    began = time.monotonic()
    assert not check_password(costly, "secret")
    assert time.monotonic() - began < 0.5
