"""Clients whose TLS connection the first proxy passes on unread."""

import contextlib
import gc
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from controlplane.metrics import figures
from controlplane.proxy.limits.connection_limits import ConnectionLimits
from controlplane.proxy.peers.header import ACCEPTED, Kind, PassedOn, SeenTls
from controlplane.proxy.wire.errors import ProjectMoved
from controlplane.proxy.wire.tls import TlsIdentity, server_name_in
from tests.proxy.conftest import ENDPOINT, PASSWORDS
from tests.proxy.peers.test_passing_on_limits import answer_to, context_of
from tests.proxy.region import FIRST, SECOND, Region, running_region
from tests.proxy.running_proxy import REGION_HOST, MemoryDirectory
from tests.proxy.wire import RawClient, trusting_context
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

ALICE: dict[str, Any] = {"user": "alice", "password": PASSWORDS["alice"]}
NAME = f"{ENDPOINT}.{REGION_HOST}"
# A name that both hosts give to the second one.
MISSING = "ep-not-there-000002"


@pytest.fixture
def region(identity: TlsIdentity, directory: MemoryDirectory) -> Iterator[Region]:
    with running_region(identity, directory, unread=True) as region:
        yield region


def passed_on_unread() -> float:
    """How many clients have been, since the tests began."""
    return float(figures.PASSED_ON.labels(Kind.TLS)._value.get())


@pytest.mark.parametrize(
    "way",
    [{}, {"channel_binding": "require"}, {"min_protocol_version": "3.2"}],
    ids=["tls", "channel binding", "protocol 3.2"],
)
def test_the_endpoints_host_performs_the_handshake(region: Region, way: dict[str, str]) -> None:
    with region.first.connect(ENDPOINT, **ALICE, **way) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("alice",)
        (here,) = region.first.proxy.sessions.all()
        (there,) = region.second.proxy.sessions.all()
        assert (here.state, there.state) == ("passed_on", "connected")
        assert here.tls is None
        assert there.tls is not None
        assert there.tls.server_name == NAME
        assert there.client_address == "127.0.0.1"


def test_the_first_proxy_performs_the_handshake_while_it_cannot_look_up_names(
    region: Region,
) -> None:
    region.first.directory.tells_early = False
    before = passed_on_unread()
    region.first.connect(ENDPOINT, **ALICE).close()
    assert passed_on_unread() == before
    region.first.directory.tells_early = True
    region.first.connect(ENDPOINT, **ALICE).close()
    assert passed_on_unread() == before + 1


def test_a_name_of_no_endpoint_is_passed_on_like_that_of_one(region: Region) -> None:
    """Otherwise the answer would tell which endpoints there are."""
    assert region.first.proxy._context.peers._host_of_unknown(MISSING) == SECOND
    for name in (ENDPOINT, MISSING):
        before = passed_on_unread()
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            region.first.connect(name, user="alice", password="wrong")
        assert passed_on_unread() == before + 1


def test_a_new_host_takes_over_names_and_moves_no_others(region: Region) -> None:
    peers = region.first.proxy._context.peers
    names = [f"ep-not-there-{number:06}" for number in range(300)]
    before = {name: peers._host_of_unknown(name) for name in names}
    known = region.first.directory.hosts
    region.first.directory.hosts = {**known, "third": replace(known[SECOND], id="third")}
    after = {name: peers._host_of_unknown(name) for name in names}
    moved = {name for name in names if before[name] != after[name]}
    assert {after[name] for name in moved} == {"third"}
    shares = [[*found.values()].count(host) for found, host in ((before, SECOND), (after, "third"))]
    assert 120 < shares[0] < 180
    assert 70 < shares[1] < 130


def test_the_endpoints_host_tells_the_client_why_it_ends(region: Region) -> None:
    with region.first.connect(ENDPOINT, **ALICE) as connection:
        assert region.second.drop(ENDPOINT) == 1
        with pytest.raises(psycopg.errors.AdminShutdown):
            connection.execute("SELECT 1")
    wait_for(lambda: not region.first.sessions() and not region.second.sessions(), "both to end")


def test_a_client_that_leaves_during_its_wake_calls_the_wake_off(
    region: Region, directory: MemoryDirectory
) -> None:
    endpoint = directory.endpoints[ENDPOINT]
    endpoint.asleep = True
    with pytest.raises(psycopg.OperationalError, match="timeout expired"):
        region.first.connect(ENDPOINT, **ALICE, connect_timeout=2)
    gc.collect()  # the traceback holds the client's socket
    wait_for(lambda: endpoint.cancelled_wakes == 1, "the wake to be cancelled")
    wait_for(lambda: not region.first.sessions(), "the connection to end")


# Limits


def test_they_take_no_place_of_an_account_before_they_have_authenticated(
    identity: TlsIdentity, directory: MemoryDirectory
) -> None:
    few = {"limits": ConnectionLimits(per_account=1, per_endpoint=1)}
    with running_region(identity, directory, first=few) as region, ExitStack() as silent:
        region.first.directory.tells_early = True
        for _ in range(5):
            client = RawClient(region.first.port)
            client.start_tls(NAME)
            silent.callback(client.socket.close)
        region.first.connect(ENDPOINT, **ALICE).close()


# What makes the first proxy perform the handshake after all


def test_a_client_in_pieces_reaches_its_endpoint(region: Region) -> None:
    """The first piece is too short to name an endpoint."""
    for pause, is_unread in ((0.05, True), (1.0, False)):
        before = passed_on_unread()
        client = RawClient(region.first.port)
        client.request_tls()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = trusting_context().wrap_bio(incoming, outgoing, server_hostname=NAME)
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        hello = outgoing.read()
        client.socket.sendall(hello[:50])
        time.sleep(pause)
        client.socket.sendall(hello[50:])
        incoming.write(client.socket.recv(65536))
        wait_for(lambda: _has_shaken_hands(tls, client, incoming), "the handshake")  # noqa: B023
        assert passed_on_unread() == before + is_unread
        client.socket.close()


def _has_shaken_hands(tls: ssl.SSLObject, client: RawClient, incoming: ssl.MemoryBIO) -> bool:
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        incoming.write(client.socket.recv(65536))
        return False
    return True


def test_a_host_that_is_not_known_by_the_clients_name_is_told_it_by_the_first(
    identity: TlsIdentity, directory: MemoryDirectory
) -> None:
    """Its certificate would not be for that name."""
    with running_region(identity, directory, second={"domains": ["other.example"]}) as region:
        region.first.directory.tells_early = True
        before = passed_on_unread()
        with region.first.connect(ENDPOINT, **ALICE) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        assert passed_on_unread() == before


def test_what_the_first_proxy_knows_may_be_out_of_date(
    region: Region, directory: MemoryDirectory
) -> None:
    """Both hosts believe that the endpoint is on the other one."""
    directory.endpoints[ENDPOINT].host_id = FIRST
    region.second.directory.tells_early = True
    region.first.directory.endpoints[ENDPOINT].failure = ProjectMoved()
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        region.first.connect(ENDPOINT, user="alice", password="wrong")


# Lies


@pytest.mark.parametrize("name", [None, "other.example", REGION_HOST])
def test_a_handshake_for_no_endpoint_is_not_accepted(region: Region, name: str | None) -> None:
    for given, is_accepted in ((name, False), (NAME, True)):
        tls = SeenTls(given, b"") if given is not None else None
        header = PassedOn(kind=Kind.TLS, client_address="192.0.2.1", tls=tls)
        context = context_of(region.certificates[0], region)
        answer = answer_to(region, context, header.encoded(), waits_for=ACCEPTED)
        assert answer.startswith(ACCEPTED) == is_accepted


def test_bytes_that_are_no_handshake_end_the_connection(region: Region) -> None:
    for sent in (b"", b"nonsense", b"\x16\x03\x01\x00\x05hello", b"GET / HTTP/1.1\r\n\r\n"):
        client = RawClient(region.first.port)
        client.request_tls()
        client.socket.sendall(sent)
        with contextlib.suppress(OSError):
            client.socket.shutdown(socket.SHUT_WR)
        client.read_to_end()
    wait_for(lambda: not region.first.sessions(), "the connections to end")


def hello_for(name: str | None) -> bytes:
    """Return the ClientHello of a client that asks for this host name."""
    outgoing = ssl.MemoryBIO()
    tls = trusting_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def test_the_name_in_a_client_hello() -> None:
    for name in (NAME, None):
        hello = hello_for(name)
        assert server_name_in(hello) == name
        assert server_name_in(hello + b"\x17\x03\x03") == name
        for part in (hello[:5], hello[:-1]):
            with pytest.raises(ssl.SSLWantReadError):
                server_name_in(part)
    assert server_name_in(b"nonsense that is no handshake") is None
