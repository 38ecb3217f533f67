"""A password in clear text is checked against the verifier that Postgres stores, and the
server's side of SCRAM against the client of another implementation."""

import asyncio
import base64
import string
import time
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scramp import ScramClient, ScramException, ScramMechanism

from controlplane.proxy.authentication import scram
from controlplane.proxy.authentication.passwords import (
    MAX_ITERATIONS,
    PasswordChecks,
    check_password,
)
from controlplane.proxy.authentication.scram import Verifier, mock_verifier, parse_verifier
from controlplane.proxy.wire.errors import PasswordFailed, ProtocolViolation
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
    costly = f"SCRAM-SHA-256${MAX_ITERATIONS * 900}:c2FsdA==${keys}:{keys}"
    began = time.monotonic()
    verifier = scram.parse_verifier(costly)
    assert verifier is None or not check_password(verifier, b"secret")
    assert time.monotonic() - began < 0.5


BINDING = b"the hash of a certificate"


def verifier_of(password: str) -> scram.Verifier:
    mechanism = ScramMechanism("SCRAM-SHA-256")
    salt, stored_key, server_key, iterations = mechanism.make_auth_info(password)
    return scram.Verifier(iterations, salt, stored_key, server_key)


def log_in(
    verifier: scram.Verifier,
    password: str,
    *,
    client_binding: bytes | None = None,
    server_binding: bytes | None = None,
) -> bytes | None:
    """Return the server's last message, or None if it refused the password."""
    mechanisms = [scram.MECHANISM] + ([scram.MECHANISM_PLUS] if client_binding else [])
    binding = ("tls-server-end-point", client_binding) if client_binding else None
    client = ScramClient(mechanisms, "alice", password, channel_binding=binding)
    server = scram.ScramServer(
        verifier, mechanism=client.mechanism_name, channel_binding=server_binding
    )
    client.set_server_first(server.first(client.get_client_first().encode()).decode())
    proof = server.final(client.get_client_final().encode())
    if proof is not None:
        client.set_server_final(proof.decode())
    return proof


def test_the_right_password_is_proved_by_both_sides() -> None:
    assert log_in(verifier_of("secret"), "secret") is not None


def test_the_right_password_is_proved_over_a_bound_channel() -> None:
    proof = log_in(verifier_of("secret"), "secret", client_binding=BINDING, server_binding=BINDING)
    assert proof is not None


def test_a_wrong_password_is_refused() -> None:
    assert log_in(verifier_of("secret"), "Secret") is None


def test_a_server_without_the_password_convinces_no_client() -> None:
    stolen = verifier_of("secret")
    fake = scram.Verifier(stolen.iterations, stolen.salt, stolen.stored_key, bytes(32))
    with pytest.raises(ScramException):
        log_in(fake, "secret")


def test_another_channel_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="channel binding check failed"):
        log_in(verifier_of("secret"), "secret", client_binding=b"another", server_binding=BINDING)


def test_a_client_that_was_denied_channel_binding_is_refused() -> None:
    server = scram.ScramServer(
        verifier_of("secret"), mechanism=scram.MECHANISM, channel_binding=BINDING
    )
    with pytest.raises(ProtocolViolation, match="negotiation"):
        server.first(b"y,,n=,r=nonce")


@pytest.mark.parametrize(
    "message",
    [b"", b"n,,", b"n,,n=,r=", b"x,,n=,r=abc", b"n,a=bob,n=,r=abc", b"n,,m=x,n=,r=abc", b"\xff"],
)
def test_a_malformed_first_message_is_refused(message: bytes) -> None:
    server = scram.ScramServer(
        verifier_of("secret"), mechanism=scram.MECHANISM, channel_binding=None
    )
    with pytest.raises(ProtocolViolation):
        server.first(message)


@given(first=st.binary(max_size=80), final=st.binary(max_size=80))
def test_random_messages_are_refused(first: bytes, final: bytes) -> None:
    server = scram.ScramServer(
        scram.mock_verifier("alice", b"secret"), mechanism=scram.MECHANISM, channel_binding=None
    )
    with pytest.raises(ProtocolViolation):
        server.first(first)
    server.first(b"n,,n=,r=abc")
    with pytest.raises(ProtocolViolation):
        server.final(final)


def test_a_verifier_is_parsed_as_postgres_stores_it() -> None:
    text = (
        "SCRAM-SHA-256$4096:ZpLtH+aVsM/Wi44PbKK8wQ==$huB3hVfZlbX7LKBSSodKnIv52+POTBMfJANYI5v7Jyc="
        ":UYEeBeIvlD7qfUbNSoCyEMOytfN9MKs3ksivlnew2Sg="
    )
    verifier = scram.parse_verifier(text)
    assert verifier is not None
    assert verifier.iterations == 4096
    assert not verifier.is_mock
    # Older versions of Postgres store a salt of any length.
    assert scram.parse_verifier(text.replace("ZpLt", "ZpLt" * 100)) is None
    assert scram.parse_verifier(text.replace("$4096:", "$0:")) is None


@pytest.mark.parametrize(
    "text",
    ["", "md5a0a0", "secret", "SCRAM-SHA-256$4096:c2FsdA==$YQ==:YQ==", "SCRAM-SHA-256$x:y$z:w"],
)
def test_other_text_is_not_a_verifier(text: str) -> None:
    assert scram.parse_verifier(text) is None


@pytest.mark.parametrize("share_an_address", [False, True])
@pytest.mark.parametrize("also_cheap_ones", [False, True])
def test_costly_checks_do_not_delay_those_of_others(
    share_an_address: bool, also_cheap_ones: bool
) -> None:
    async def check(checks: PasswordChecks, verifier: Verifier, number: int) -> None:
        address = f"192.0.2.{1 if share_an_address else number}"
        with suppress(PasswordFailed):
            await checks.check(
                verifier, b"wrong", role="ann", endpoint_id=f"ep-{number}", address=address
            )

    async def cheap_after_costly() -> int:
        checks = PasswordChecks()
        usual = verifier_of("right")
        slow = replace(usual, iterations=MAX_ITERATIONS)
        costly = [asyncio.create_task(check(checks, slow, number)) for number in range(1, 9)]
        await asyncio.sleep(0)
        # Of the same endpoints, which may have roles with verifiers of both kinds.
        numbers = range(1, 9) if also_cheap_ones else ()
        others = [asyncio.create_task(check(checks, usual, number)) for number in numbers]
        await asyncio.sleep(0)
        await check(checks, usual, 100)
        left = sum(not one.done() for one in costly)
        checks.close()
        await asyncio.gather(*costly, *others, return_exceptions=True)
        return left

    assert asyncio.run(cheap_after_costly()) >= 7


def test_an_unknown_role_gets_the_same_challenge_every_time() -> None:
    once, again = (scram.mock_verifier("alice", b"secret") for _ in range(2))
    assert once.salt == again.salt != scram.mock_verifier("bob", b"secret").salt
    assert log_in(once, "secret") is None
