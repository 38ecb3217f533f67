"""Which clients are refused, and with which errors."""

import socket
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from controlplane.proxy.limits.connection_limits import ConnectionLimits, SharedCounts
from controlplane.proxy.settings import PlainConnections, Siblings
from controlplane.proxy.wire.tls import TlsIdentity
from tests.proxy.conftest import ENDPOINT, PASSWORDS
from tests.proxy.running_proxy import MemoryDirectory, RunningProxy, plain, running_proxy
from tests.proxy.wire import RawClient
from tests.support.bare_postgres import BarePostgres
from tests.support.waiting import wait_for

ALICE: dict[str, Any] = {"user": "alice", "password": PASSWORDS["alice"]}
BOB: dict[str, Any] = {"user": "bob", "password": PASSWORDS["bob"]}
# Endpoints of ENDPOINT's account, and of another.
SIBLING, FOREIGN = "ep-calm-river-000002", "ep-wild-creek-000003"


def refusal(proxy: RunningProxy, endpoint_id: str = ENDPOINT, **parameters: Any) -> str:
    """Return the error that the client gets, without the address before it."""
    with pytest.raises(psycopg.OperationalError) as caught:
        proxy.connect(endpoint_id, **parameters)
    return str(caught.value).split("FATAL:  ")[-1].strip()


@pytest.mark.parametrize("way", [{}, plain(ENDPOINT)], ids=["tls", "plain"])
def test_a_wrong_password(proxy: RunningProxy, way: dict[str, str]) -> None:
    words = refusal(proxy, user="alice", password="wrong", **way)
    failed, _, hint = words.partition("\nHINT:  ")
    assert failed == 'password authentication failed for user "alice"'
    assert hint.startswith("Check the password, the role and the spelling of the endpoint's id.")


@pytest.mark.parametrize(
    ("endpoint_id", "user"), [("ep-unknown-000002", "alice"), (ENDPOINT, "mallory")]
)
def test_an_unknown_endpoint_or_role_looks_like_a_wrong_password(
    proxy: RunningProxy, endpoint_id: str, user: str
) -> None:
    """The same messages of the same length, with a salt that does not change."""
    known = RawClient.log_in(proxy.port, ENDPOINT, user="alice", password="wrong")
    unknown = [
        RawClient.log_in(proxy.port, endpoint_id, user=user, password="wrong") for _ in range(2)
    ]
    assert known.kinds == unknown[0].kinds
    assert known.sqlstate == unknown[0].sqlstate == "28P01"
    assert [len(message) for message in known.sasl] == [len(message) for message in unknown[0].sasl]
    assert unknown[0].salt == unknown[1].salt != known.salt
    assert unknown[0].iterations == known.iterations


def test_a_wrong_password_wakes_nothing(proxy: RunningProxy) -> None:
    refusal(proxy, user="alice", password="wrong")
    assert proxy.directory.endpoints[ENDPOINT].wakes == 0


def test_a_disabled_endpoint(proxy: RunningProxy) -> None:
    proxy.directory.endpoints[ENDPOINT].disabled = True
    assert refusal(proxy, **ALICE) == "Control plane request failed: endpoint is disabled"
    # Only a client with the right password learns this.
    assert "password authentication failed" in refusal(proxy, user="alice", password="wrong")


def test_no_endpoint(proxy: RunningProxy) -> None:
    assert refusal(proxy, host="127.0.0.1", **ALICE).startswith("Endpoint ID is not specified.")


def test_two_endpoints(proxy: RunningProxy) -> None:
    words = refusal(proxy, options="endpoint=ep-other", **ALICE)
    assert words.startswith("Inconsistent project name inferred from SNI")


def test_a_host_of_another_region(proxy: RunningProxy) -> None:
    words = refusal(proxy, host=f"{ENDPOINT}.eu.example.com", **ALICE)
    assert words == f"Common name inferred from SNI ('{ENDPOINT}.eu.example.com') is not known"


@pytest.mark.parametrize("endpoint_id", ["ep_x", "ep'; DROP TABLE x --", "../ep", "ép", "%00"])
def test_an_endpoint_id_of_odd_characters(proxy: RunningProxy, endpoint_id: str) -> None:
    option = "endpoint=" + endpoint_id.replace(" ", "\\ ")
    words = refusal(proxy, host="127.0.0.1", options=option, **ALICE)
    assert "must contain only alphanumeric characters and hyphen." in words


def test_plain_connections_where_only_tls_is_allowed(
    identity: TlsIdentity, directory: MemoryDirectory
) -> None:
    with running_proxy(identity, directory, plain_connections=PlainConnections.NEVER) as proxy:
        words = refusal(proxy, **ALICE, **plain(ENDPOINT))
        assert words == "connection is insecure (try using `sslmode=require`)"
        proxy.connect(ENDPOINT, **ALICE).close()


def test_too_many_connections(identity: TlsIdentity, directory: MemoryDirectory) -> None:
    with running_proxy(identity, directory, limits=ConnectionLimits(total=1)) as proxy:
        with proxy.connect(ENDPOINT, **ALICE):
            words = "sorry, too many clients already: the proxy may have at most 1 connections"
            assert refusal(proxy, **ALICE) == words
            # Only a client with the right password learns this.
            assert "password authentication" in refusal(proxy, user="alice", password="wrong")
        wait_for(lambda: proxy.sessions() == 0, "the sessions to end")
        proxy.connect(ENDPOINT, **ALICE).close()


@pytest.mark.parametrize(
    ("limited", "whose", "others"),
    [
        ("role", f'role "alice" of {ENDPOINT}', [(ENDPOINT, BOB), (SIBLING, ALICE)]),
        ("endpoint", f'endpoint "{ENDPOINT}"', [(SIBLING, ALICE)]),
        ("account", "the endpoint's account", [(FOREIGN, ALICE)]),
    ],
)
def test_too_many_connections_of_one_endpoint_leave_room_for_others(
    identity: TlsIdentity,
    directory: MemoryDirectory,
    limited: str,
    whose: str,
    others: list[tuple[str, dict[str, Any]]],
) -> None:
    directory.endpoints[SIBLING] = replace(directory.endpoints[ENDPOINT])
    directory.endpoints[FOREIGN] = replace(directory.endpoints[ENDPOINT], account_id=2)
    limit = {"limits": ConnectionLimits(**{f"per_{limited}": 2})}
    with running_proxy(identity, directory, **limit) as proxy, ExitStack() as opened:
        for _ in range(2):
            opened.enter_context(proxy.connect(ENDPOINT, **ALICE))
        assert (
            refusal(proxy, **ALICE)
            == f"sorry, too many clients already: {whose} may have at most 2 connections"
        )
        for endpoint_id, who in others:
            opened.enter_context(proxy.connect(endpoint_id, **who))


def test_a_plan_limits_the_connections_to_all_endpoints_of_an_account(
    identity: TlsIdentity, directory: MemoryDirectory
) -> None:
    ours = replace(directory.endpoints[ENDPOINT], account_connections=2)
    directory.endpoints |= {ENDPOINT: ours, SIBLING: replace(ours)}
    directory.endpoints[FOREIGN] = replace(ours, account_id=2, account_connections=None)
    with running_proxy(identity, directory) as proxy, ExitStack() as opened:
        for endpoint_id in (ENDPOINT, SIBLING):
            opened.enter_context(proxy.connect(endpoint_id, **ALICE))
        words = "too many clients already: the endpoint's account may have at most 2 connections"
        assert words in refusal(proxy, **ALICE)
        for _ in range(3):
            opened.enter_context(proxy.connect(FOREIGN, **ALICE))


def test_a_refused_connection_does_not_count(
    identity: TlsIdentity, directory: MemoryDirectory
) -> None:
    with running_proxy(identity, directory, limits=ConnectionLimits(per_endpoint=1)) as proxy:
        for _ in range(3):
            with proxy.connect(ENDPOINT, **ALICE):
                client = RawClient.log_in(
                    proxy.port, ENDPOINT, user="bob", password=PASSWORDS["bob"]
                )
                assert client.sqlstate == "53300"
            wait_for(lambda: proxy.sessions() == 0, "the sessions to end")


def test_limits_apply_to_several_processes_together(
    identity: TlsIdentity, directory: MemoryDirectory, tmp_path: Path
) -> None:
    counts = SharedCounts()
    one, other = (
        {"siblings": Siblings(number, tmp_path, counts), "limits": ConnectionLimits(per_role=3)}
        for number in range(2)
    )
    with running_proxy(identity, directory, **one) as first, ExitStack() as opened:
        opened.enter_context(first.connect(ENDPOINT, **ALICE))
        with running_proxy(identity, directory, **other) as second:
            leaving = [second.connect(ENDPOINT, **ALICE) for _ in range(2)]
            for proxy in (first, second):
                assert "may have at most 3 connections" in refusal(proxy, **ALICE)
            leaving.pop().close()
            wait_for(lambda: second.sessions() == 1, "the session to end")
            opened.enter_context(first.connect(ENDPOINT, **ALICE))
            assert "may have at most 3 connections" in refusal(second, **ALICE)
            opened.enter_context(second.connect(ENDPOINT, **BOB))
            leaving.pop().close()
            opened.close()
            wait_for(lambda: second.sessions() == 0, "the sessions to end")


def test_the_connections_of_a_dead_process_do_not_count_once_it_is_replaced() -> None:
    counts = SharedCounts()
    dying, other = counts.of(0), counts.of(1)
    dying.add(("role", ENDPOINT, "alice"), 1)
    dying.note_sessions(7)
    assert (other.of_others(("role", ENDPOINT, "alice")), other.fewest_sessions()) == (1, 7)
    counts.of(0)
    assert (other.of_others(("role", ENDPOINT, "alice")), other.fewest_sessions()) == (0, None)


@pytest.mark.slow
def test_wrong_passwords_delay_no_other_client(proxy: RunningProxy, postgres: BarePostgres) -> None:
    """A hundred arrive at once from one address; bob is accepted at once nevertheless."""
    guesses = [
        RawClient.start_log_in(proxy.port, ENDPOINT, user="alice", password=f"guess {n}")
        for n in range(100)
    ]
    began = time.monotonic()
    with proxy.connect(ENDPOINT, user="bob", password=PASSWORDS["bob"]):
        assert time.monotonic() - began < 1.0
    answers = [guess.finish() for guess in guesses]
    assert {answer.sqlstate for answer in answers} == {"28P01"}
    # The delay of the answers grew.
    assert time.monotonic() - began > 1.0


def test_connections_without_a_login_make_room_for_new_ones(
    identity: TlsIdentity, directory: MemoryDirectory
) -> None:
    with running_proxy(identity, directory, max_pending=5) as proxy:
        silent = [socket.create_connection(("127.0.0.1", proxy.port)) for _ in range(20)]
        proxy.connect(ENDPOINT, **ALICE).close()
        # The oldest were closed.
        assert silent[0].recv(1) == b""
        for connection in silent:
            connection.close()


def test_many_silent_connections_from_one_address_displace_no_slow_client_from_another(
    identity: TlsIdentity, directory: MemoryDirectory
) -> None:
    with running_proxy(identity, directory, max_pending=5) as proxy:
        slow = [socket.create_connection(("127.0.0.1", proxy.port)) for _ in range(2)]
        wait_for(lambda: proxy.sessions() == 2, "the slow clients")
        crowd = [
            socket.create_connection(("127.0.0.1", proxy.port), source_address=("127.0.0.2", 0))
            for _ in range(50)
        ]
        assert crowd[0].recv(1) == b""
        for connection in slow:
            connection.sendall(bytes.fromhex("00000008 04d2162f"))
            assert connection.recv(1) == b"S"
        for connection in (*slow, *crowd):
            connection.close()
