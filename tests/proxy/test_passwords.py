"""A password in clear text is checked against the verifier that Postgres stores."""

import base64
import string
import time

import pytest

from controlplane.proxy.authentication.passwords import MAX_ITERATIONS, check_password
from controlplane.proxy.authentication.scram import mock_verifier, parse_verifier
from tests.support.bare_postgres import BarePostgres

ODD = [
    "alice's secret",
    string.printable.strip(),
    "äß€😀",
    # Text that SASLprep changes: a compatible character, spaces, invisible characters.
    "\u2168 \u00a0x\u00ady",
    # Text that it does not change: a control character, a change of direction.
    "bell\u0007é",
    "\u0627a\u0628",
    "\u0627\u0628",
    " ",
]


def fits(text: str, password: str) -> bool:
    verifier = parse_verifier(text)
    assert verifier is not None
    return check_password(verifier, password.encode())


@pytest.mark.parametrize("password", ODD)
def test_a_verifier_made_by_postgres_accepts_only_its_password(
    postgres: BarePostgres, password: str
) -> None:
    with postgres.connect() as connection:
        verifier = connection.pgconn.encrypt_password(
            password.encode(), b"alice", b"scram-sha-256"
        ).decode()
    assert fits(verifier, password)
    for other in (password + "x", password[:-1], "", password.upper() + "ß"):
        assert not fits(verifier, other)


def test_a_verifier_computed_by_the_server(postgres: BarePostgres) -> None:
    with postgres.connect() as connection:
        connection.execute("SET scram_iterations = 10000")
        connection.execute("CREATE ROLE hashed LOGIN PASSWORD 'it''s secret'")
    ((verifier,),) = postgres.execute("SELECT rolpassword FROM pg_authid WHERE rolname = 'hashed'")
    assert fits(verifier, "it's secret")
    assert not fits(verifier, "its secret")


def test_a_mock_accepts_no_password() -> None:
    assert not check_password(mock_verifier("ep/alice", b"key"), b"secret")


def test_a_verifier_with_too_many_iterations_is_not_tried() -> None:
    keys = base64.b64encode(bytes(32)).decode()
    costly = f"SCRAM-SHA-256${MAX_ITERATIONS * 1000}:c2FsdA==${keys}:{keys}"
    began = time.monotonic()
    assert not fits(costly, "secret")
    assert time.monotonic() - began < 0.5
