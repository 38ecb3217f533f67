"""Clients with neither SNI nor `options` put the endpoint's name before the password."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from controlplane.proxy.authentication.passwords import PasswordChecks, check_password
from controlplane.proxy.authentication.scram import mock_verifier, parse_verifier
from controlplane.proxy.wire.errors import PasswordFailed
from tests.proxy.authentication.test_access_rules import NOT_ALLOWED, rules
from tests.proxy.authentication.test_refusals import refusal
from tests.proxy.conftest import ENDPOINT, PASSWORDS, create_role, verifiers_of
from tests.proxy.running_proxy import RunningProxy
from tests.proxy.wire import RawClient
from tests.support.bare_postgres import BarePostgres

pytestmark = pytest.mark.slow

NAMELESS: dict[str, Any] = {"host": "127.0.0.1", "user": "alice"}
SECRET = PASSWORDS["alice"]


async def fits(checks: PasswordChecks, verifier: Any, password: bytes, **where: str) -> bool:
    try:
        await checks.check(verifier, password, role="alice", **where)
    except PasswordFailed:
        return False
    return True


@pytest.mark.parametrize(
    "way", [{"sslmode": "disable"}, {"sslmode": "require"}, {"max_protocol_version": "latest"}]
)
@pytest.mark.parametrize(
    "form", ["endpoint={};{}", "endpoint={}${}", "project={};{}", "project={}${}"]
)
def test_psycopg(proxy: RunningProxy, form: str, way: dict[str, str]) -> None:
    password = form.format(ENDPOINT, SECRET)
    with proxy.connect(ENDPOINT, **NAMELESS, password=password, **way) as connection:
        assert connection.execute("SELECT current_user, 6 * 7").fetchone() == ("alice", 42)


def test_the_pooler(proxy: RunningProxy) -> None:
    endpoint = proxy.directory.endpoints[ENDPOINT]
    endpoint.pooler, endpoint.address = endpoint.address, replace(endpoint.address, run="none")
    password = f"endpoint={ENDPOINT.upper()}-POOLER;{SECRET}"
    proxy.connect(ENDPOINT, **NAMELESS, password=password).close()


def test_a_password_that_contains_the_separators(
    proxy: RunningProxy, postgres: BarePostgres
) -> None:
    create_role(postgres, "marks", "endpoint=x;$;ä")
    proxy.directory.endpoints[ENDPOINT].verifiers = verifiers_of(postgres)
    for password in (f"endpoint={ENDPOINT};endpoint=x;$;ä", f"endpoint={ENDPOINT}$endpoint=x;$;ä"):
        proxy.connect(ENDPOINT, host="127.0.0.1", user="marks", password=password).close()


@pytest.mark.parametrize(
    ("endpoint_id", "user", "password"),
    [
        (ENDPOINT, "alice", "wrong"),
        (ENDPOINT, "mallory", SECRET),
        ("ep-no-such-000009", "alice", SECRET),
    ],
)
def test_refusals_are_the_same_as_with_other_names(
    proxy: RunningProxy, endpoint_id: str, user: str, password: str
) -> None:
    words = refusal(
        proxy, host="127.0.0.1", user=user, password=f"endpoint={endpoint_id};{password}"
    )
    failed, _, hint = words.partition("\nHINT:  ")
    assert failed == f'password authentication failed for user "{user}"'
    assert "spelling of the endpoint's id" in hint
    known = endpoint_id if endpoint_id == ENDPOINT else None
    assert proxy.directory.refusals == [(known, user, "127.0.0.1")]
    assert proxy.directory.endpoints[ENDPOINT].wakes == 0


@pytest.mark.parametrize(
    "password", [SECRET, f"endpoint={ENDPOINT}", "endpoint=;x", "endpoint=a b;x", "id=ep-a;x"]
)
def test_a_password_without_an_endpoint(proxy: RunningProxy, password: str) -> None:
    words = refusal(proxy, **NAMELESS, password=password)
    assert words.startswith("Endpoint ID is not specified.")
    assert password not in words


def test_the_host_name_of_a_tunnel_is_ignored(proxy: RunningProxy) -> None:
    tunnel = {**NAMELESS, "host": "db.example.com"}
    proxy.connect(ENDPOINT, **tunnel, password=f"endpoint={ENDPOINT};{SECRET}").close()
    words = refusal(proxy, **tunnel, password=SECRET)
    assert words == "Common name inferred from SNI ('db.example.com') is not known"


def test_address_rules_apply(proxy: RunningProxy) -> None:
    proxy.directory.endpoints[ENDPOINT].rules = rules("192.0.2.0/24")
    words = refusal(proxy, **NAMELESS, password=f"endpoint={ENDPOINT};wrong")
    assert words == NOT_ALLOWED


@pytest.mark.parametrize("payload", [b"no end", b"two\0ends\0", b"", b"x" * 10_000 + b"\0"])
def test_a_malformed_password_message(proxy: RunningProxy, payload: bytes) -> None:
    client = RawClient(proxy.port)
    client.send_startup(user="alice")
    assert client.read_message() == (b"R", b"\0\0\0\3")
    client.send(b"p", payload)
    kind, error = client.read_message()
    assert kind == b"E"
    assert b"08P01" in error
    client.socket.close()


def test_wrong_passwords_are_delayed_and_do_not_delay_others(proxy: RunningProxy) -> None:
    began = time.monotonic()

    def guess(number: int) -> str:
        password = f"endpoint={ENDPOINT};guess {number}"
        return refusal(proxy, **NAMELESS, password=password)

    with ThreadPoolExecutor(20) as pool:
        guesses = [pool.submit(guess, number) for number in range(40)]
        with proxy.connect(ENDPOINT, user="bob", password=PASSWORDS["bob"]):
            assert time.monotonic() - began < 2.0
        assert {"password authentication" in guess.result() for guess in guesses} == {True}
    assert time.monotonic() - began > 1.0


def test_a_right_password_is_hashed_once_while_its_verifier_stays(
    postgres: BarePostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[bytes] = []

    def check(verifier: Any, password: bytes) -> bool:
        hashed.append(password)
        return check_password(verifier, password)

    monkeypatch.setattr("controlplane.proxy.authentication.passwords.check_password", check)

    def verifier_of(password: bytes) -> Any:
        with postgres.connect() as connection:
            made = connection.pgconn.encrypt_password(password, b"alice", b"scram-sha-256")
        return parse_verifier(made.decode())

    async def ask(checks: PasswordChecks, verifier: Any, *given: bytes) -> list[bool]:
        where = {"endpoint_id": ENDPOINT, "address": "192.0.2.7"}
        return [await fits(checks, verifier, password, **where) for password in given]

    async def tell() -> None:
        checks = PasswordChecks()
        first, second = verifier_of(b"one"), verifier_of(b"two")
        assert await ask(checks, first, b"one", b"one", b"two", b"two") == [
            True,
            True,
            False,
            False,
        ]
        assert hashed == [b"one", b"two", b"two"]
        assert await ask(checks, second, b"one", b"two") == [False, True]
        assert await ask(checks, mock_verifier("x", b""), b"one") == [False]
        assert not checks._turns
        checks.close()

    asyncio.run(tell())


def test_one_address_has_one_check_at_a_time_and_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same applies to one endpoint. The event loop continues meanwhile."""
    going_on = threading.Semaphore(0)
    order: list[bytes] = []

    def check(_: Any, password: bytes) -> bool:
        order.append(password)
        return going_on.acquire(timeout=10) and False

    monkeypatch.setattr("controlplane.proxy.authentication.passwords.check_password", check)

    async def tell() -> None:
        checks = PasswordChecks()
        verifier = mock_verifier("x", b"")

        def ask(password: bytes, endpoint_id: str, address: str) -> "asyncio.Task[bool]":
            return asyncio.ensure_future(
                fits(checks, verifier, password, endpoint_id=endpoint_id, address=address)
            )

        asked = [ask(b"flood", f"ep-{number}", f"2001:db8::{number}") for number in range(50)]
        asked += [ask(b"honest", "ep-1", "192.0.2.7")]
        await asyncio.sleep(0.05)
        for _ in asked:
            going_on.release()
        assert await asyncio.gather(*asked) == [False] * 51
        # A client from another network is second, however many of one network came before.
        assert order.index(b"honest") <= 2
        checks.close()

    asyncio.run(tell())
