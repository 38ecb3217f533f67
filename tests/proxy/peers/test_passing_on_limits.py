"""What a passed-on client counts as, what it may do, and what happens if the two hosts cannot
connect or one of them lies."""

import json
import socket
import ssl
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import psycopg
import pytest

from controlplane.proxy.authentication.access_rules import parse_rules
from controlplane.proxy.limits.connection_limits import ConnectionLimits
from controlplane.proxy.peers.header import ACCEPTED, Kind, PassedOn
from controlplane.proxy.settings import PlainConnections, mark_of_host, mark_of_key, marked
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.errors import ProjectMoved
from controlplane.proxy.wire.peer_tls import PeerCertificate, PeerTls
from controlplane.proxy.wire.startup import PEER_REQUEST
from controlplane.proxy.wire.tls import TlsIdentity
from tests.proxy.conftest import ENDPOINT, PASSWORDS
from tests.proxy.protocol.test_proxy_protocol import header as forwarded
from tests.proxy.region import FIRST, SECOND, Region, certificate, running_region
from tests.proxy.running_proxy import REGION_HOST, MemoryDirectory
from tests.proxy.wire import RawClient
from tests.support.bare_postgres import BarePostgres
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

ALICE: dict[str, Any] = {"user": "alice", "password": PASSWORDS["alice"]}
NAME = f"{ENDPOINT}.{REGION_HOST}"
SLEEP = "SELECT pg_sleep(62)"
UNREAD = pytest.mark.parametrize("unread", [False, True], ids=["read", "unread"])
BEHIND_BALANCER = {
    "load_balancers": [ip_network("127.0.0.0/8")],
    "plain_connections": PlainConnections.ALWAYS,
}


@pytest.fixture
def region(identity: TlsIdentity, directory: MemoryDirectory) -> Iterator[Region]:
    with running_region(identity, directory) as region:
        yield region


# Cancelling


@pytest.mark.parametrize("asked", [FIRST, SECOND])
@pytest.mark.parametrize(("longest", "unread"), [("3.0", False), ("3.2", False), ("3.2", True)])
def test_a_cancel_request_reaches_the_host_that_issued_the_key(
    region: Region, postgres: BarePostgres, asked: str, longest: str, unread: bool
) -> None:
    region.first.directory.tells_early = unread
    versions = {"min_protocol_version": longest, "max_protocol_version": longest}
    with region.first.connect(ENDPOINT, **ALICE, **versions) as connection:
        with ThreadPoolExecutor() as pool:
            sleeping = pool.submit(connection.execute, SLEEP)
            wait_for(lambda: postgres.runs(SLEEP), "the query to run")
            pid = connection.pgconn.backend_pid
            messenger = RawClient({FIRST: region.first, SECOND: region.second}[asked].port)
            secret = region.second.secret_of(pid)
            messenger.socket.sendall(messages.cancel_request(pid, secret))
            assert messenger.read_to_end() == b""
            with pytest.raises(psycopg.errors.QueryCanceled):
                sleeping.result(20)
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_cancel_request_with_a_wrong_secret_is_ignored(
    region: Region, postgres: BarePostgres
) -> None:
    with region.first.connect(ENDPOINT, **ALICE) as connection, ThreadPoolExecutor() as pool:
        sleeping = pool.submit(connection.execute, SLEEP)
        wait_for(lambda: postgres.runs(SLEEP), "the query to run")
        messenger = RawClient(region.first.port)
        pid = connection.pgconn.backend_pid
        messenger.socket.sendall(messages.cancel_request(pid, b"xxxx"))
        assert messenger.read_to_end() == b""
        assert postgres.runs(SLEEP)
        connection.cancel_safe()
        with pytest.raises(psycopg.errors.QueryCanceled):
            sleeping.result(20)


def test_every_cancel_key_has_the_mark_of_its_host() -> None:
    for host in ("local", "h2", "a host with a long name"):
        for pid in (0, 1, 12345, 2**31 - 1):
            own = marked(pid, host)
            assert 0 <= own < 2**31
            assert mark_of_key(own) == mark_of_host(host)
            assert own % 64 == pid % 64


# Limits and rules


def test_the_endpoints_host_counts_clients_of_every_proxy(
    identity: TlsIdentity, directory: MemoryDirectory
) -> None:
    one = {"limits": ConnectionLimits(per_endpoint=1)}
    with (
        running_region(identity, directory, second=one) as region,
        region.first.connect(ENDPOINT, **ALICE),
    ):
        for proxy in (region.first, region.second):
            with pytest.raises(psycopg.OperationalError, match="too many clients"):
                proxy.connect(ENDPOINT, **ALICE)


@pytest.mark.parametrize("limits", [{}, {"unproved": 3}, {"unproved_per_network": 3}])
def test_handshakes_that_are_passed_on_take_no_places_of_clients(
    identity: TlsIdentity, directory: MemoryDirectory, limits: dict[str, int]
) -> None:
    """Beyond a limit of their own, the first proxy performs them, and counts clients itself."""
    settings = {"limits": ConnectionLimits(total=4, **limits), "max_pending": 6}
    with (
        running_region(identity, directory, first=settings, unread=True) as region,
        ExitStack() as silent,
    ):
        for _ in range(5):
            client = RawClient(region.first.port)
            client.start_tls(NAME)
            silent.callback(client.socket.close)
        # One on this host too.
        known = region.first.directory.endpoints
        known["ep-near-000001"] = replace(known[ENDPOINT], host_id="")
        for endpoint in ("ep-near-000001", ENDPOINT, "ep-near-000001", ENDPOINT):
            held = silent.enter_context(region.first.connect(endpoint, **ALICE))
            assert held.execute("SELECT 1").fetchone() == (1,)


@UNREAD
def test_passed_on_clients_count_in_the_first_proxys_limits(
    identity: TlsIdentity, directory: MemoryDirectory, unread: bool
) -> None:
    one = {"limits": ConnectionLimits(total=1, unproved=0)}
    with running_region(identity, directory, first=one, unread=unread) as region:
        only = region.first.connect(ENDPOINT, **ALICE)
        with pytest.raises(psycopg.OperationalError, match="the proxy may have at most 1"):
            region.first.connect(ENDPOINT, **ALICE)
        only.close()
        wait_for(lambda: not region.first.sessions(), "the client to leave")
        region.first.connect(ENDPOINT, **ALICE).close()


@UNREAD
def test_clients_that_do_not_log_in_make_room_on_both_hosts(
    identity: TlsIdentity, directory: MemoryDirectory, unread: bool
) -> None:
    few = {"max_pending": 5}
    with (
        running_region(identity, directory, first=few, second=few, unread=unread) as region,
        region.first.connect(ENDPOINT, **ALICE) as connection,
        ExitStack() as silent,
    ):
        for _ in range(20):
            client = RawClient(region.first.port)
            if unread:
                client.start_tls(NAME)
            else:
                client.send_startup(user="alice", options=f"endpoint={ENDPOINT}")
            silent.callback(client.socket.close)
        wait_for(lambda: region.first.sessions() <= 6, "the oldest to be closed")
        wait_for(lambda: region.second.sessions() <= 6, "the oldest to be closed there")
        # One that has authenticated is not among them.
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_client_without_a_start_up_message_is_not_passed_on(region: Region) -> None:
    for sent in (b"", b"\0\0\0\x08\x04\xd2\x16\x2f", b"\0\0\0\x20", b"nonsense"):
        client = RawClient(region.first.port)
        client.socket.sendall(sent)
        client.socket.shutdown(socket.SHUT_WR)
        client.read_to_end()
    assert not region.second.sessions()


@UNREAD
def test_access_rules_are_for_the_clients_own_address(
    identity: TlsIdentity, directory: MemoryDirectory, unread: bool
) -> None:
    rules = parse_rules(json.dumps({"allowed_ips": {"ips": ["192.0.2.0/24"]}}), is_protected=False)
    settings = {"first": BEHIND_BALANCER, "second": BEHIND_BALANCER}
    with running_region(identity, directory, **settings, unread=unread) as region:
        # Only the second host knows of them yet.
        directory.endpoints[ENDPOINT].rules = rules
        for source, answer in (("192.0.2.7", b"R"), ("203.0.113.9", b"E")):
            client = RawClient(region.first.port)
            client.socket.sendall(forwarded(source))
            if unread:
                client.start_tls(NAME)
            client.send_startup(user="alice", options=f"endpoint={ENDPOINT}", database="postgres")
            kind, payload = client.read_message()
            assert kind == answer
            assert kind == b"R" or f"This IP address {source} is not allowed".encode() in payload
            client.socket.close()
        assert directory.outsiders == [(ENDPOINT, "alice", "203.0.113.9")]


def test_a_client_must_use_tls_also_if_it_is_passed_on(
    identity: TlsIdentity, directory: MemoryDirectory
) -> None:
    never = {"plain_connections": PlainConnections.NEVER}
    with running_region(identity, directory, second=never) as region:
        client = RawClient(region.first.port)
        client.send_startup(user="alice", options=f"endpoint={ENDPOINT}")
        kind, payload = client.read_message()
        assert kind == b"E"
        assert b"connection is insecure" in payload
        client.socket.close()
        region.first.connect(ENDPOINT, **ALICE).close()


def test_a_client_may_end_its_input_and_read_on(region: Region) -> None:
    client = RawClient.start_log_in(region.first.port, ENDPOINT, **ALICE)
    while client.read_message()[0] != b"Z":
        pass
    client.send(b"Q", b"SELECT repeat('x', 1000) FROM generate_series(1, 20000)\0")
    client.socket.shutdown(socket.SHUT_WR)
    assert client.read_to_end().count(b"x" * 1000) == 20_000


# Failures


def test_a_host_with_another_address_is_found_at_once(region: Region) -> None:
    """The proxy reads the region's hosts only from time to time."""
    known = region.first.directory.hosts
    region.introduce(port=1)

    async def read() -> None:
        region.first.directory.hosts = known

    region.first.directory.read_peers = read  # type: ignore[method-assign]
    with region.first.connect(ENDPOINT, **ALICE) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


@UNREAD
def test_a_host_that_is_away_is_named(
    region: Region, caplog: pytest.LogCaptureFixture, unread: bool
) -> None:
    region.first.directory.tells_early = unread
    region.introduce(port=1)
    with pytest.raises(psycopg.OperationalError, match='host "second" cannot be reached'):
        region.first.connect(ENDPOINT, **ALICE)
    records = [one for one in caplog.records if one.message == "host unreachable"]
    assert "Connect call failed" in vars(records[0])["error"]


def test_a_host_that_does_not_answer_is_named_after_five_seconds(region: Region) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        region.introduce(port=silent.getsockname()[1])
        with pytest.raises(psycopg.OperationalError, match='host "second" cannot be reached'):
            region.first.connect(ENDPOINT, **ALICE)


@pytest.mark.parametrize("whose", [FIRST, SECOND])
def test_only_published_certificates_are_accepted(
    region: Region, whose: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = certificate().certificate
    if whose == SECOND:
        region.introduce(certificate=other)
    else:
        known = region.second.directory.hosts[FIRST]
        region.second.directory.hosts = {FIRST: replace(known, certificate=other)}
    with pytest.raises(psycopg.OperationalError, match='host "second" cannot be reached'):
        region.first.connect(ENDPOINT, **ALICE)
    assert any("certificate" in str(vars(record).get("error", "")) for record in caplog.records)
    assert not region.second.directory.endpoints[ENDPOINT].wakes


def test_a_client_is_told_if_the_connection_between_the_hosts_breaks(region: Region) -> None:
    with region.first.connect(ENDPOINT, **ALICE) as connection:
        (there,) = region.second.proxy.sessions.all()
        region.second.loop.call_soon_threadsafe(there.abandon)
        wait_for(lambda: not region.first.sessions(), "the client's end")
        with pytest.raises(psycopg.errors.AdminShutdown):
            connection.execute("SELECT 1")


def test_a_client_is_not_passed_on_endlessly(
    identity: TlsIdentity, directory: MemoryDirectory
) -> None:
    """Both hosts believe that the endpoint is on the other one."""
    with running_region(identity, directory, second={"wake_timeout": 1.0}) as region:
        directory.endpoints[ENDPOINT].host_id = FIRST
        for proxy in (region.first, region.second):
            proxy.directory.endpoints[ENDPOINT].failure = ProjectMoved()
        with pytest.raises(psycopg.OperationalError, match="the compute has stopped"):
            region.first.connect(ENDPOINT, **ALICE)
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            region.first.connect(ENDPOINT, user="alice", password="wrong")


def test_a_host_without_a_certificate_is_only_named(region: Region) -> None:
    """It runs an earlier release."""
    region.first.directory.hosts = {}
    with pytest.raises(psycopg.OperationalError, match="on another host of its region"):
        region.first.connect(ENDPOINT, **ALICE)


# Lies

HEADER = PassedOn(kind=Kind.POSTGRES, client_address="192.0.2.1")


def test_a_header_without_tls_is_refused(region: Region) -> None:
    client = RawClient(region.second.port)
    client.socket.sendall(PEER_REQUEST + HEADER.encoded())
    assert ACCEPTED not in client.read_to_end()


@pytest.mark.parametrize("own", [None, "another"])
def test_a_header_without_a_published_certificate_is_refused(
    region: Region, own: str | None
) -> None:
    if own is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    else:
        context = context_of(certificate(), region)
    assert ACCEPTED not in answer_to(region, context, HEADER.encoded())


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack("!I", 1 << 20),
        struct.pack("!I", 2) + b"{}",
        struct.pack("!I", 4) + b"null",
        struct.pack("!I", 2) + b"\xff\xff",
        PassedOn(kind=Kind.POSTGRES, client_address="nowhere").encoded(),
        HEADER.encoded().replace(b'"version": 1', b'"version": 9'),
    ],
)
def test_an_unreadable_header_is_refused(region: Region, sent: bytes) -> None:
    answer = answer_to(region, context_of(region.certificates[0], region), sent)
    assert answer.startswith(b"E")
    assert messages.error_sqlstate(answer[5:]) == "08P01"


def test_a_published_certificate_is_accepted(region: Region) -> None:
    """Otherwise the tests above would prove nothing."""
    context = context_of(region.certificates[0], region)
    assert answer_to(region, context, HEADER.encoded()).startswith(ACCEPTED)


def test_the_request_of_another_host_within_tls_is_refused(region: Region) -> None:
    client = RawClient(region.second.port)
    client.start_tls()
    client.socket.sendall(PEER_REQUEST)
    kind, payload = client.read_message()
    assert (kind, messages.error_sqlstate(payload)) == (b"E", "08P01")
    client.socket.close()


def test_a_client_of_a_load_balancer_cannot_do_without_its_header(
    identity: TlsIdentity, directory: MemoryDirectory
) -> None:
    with running_region(identity, directory, second=BEHIND_BALANCER) as region:
        region.first.connect(ENDPOINT, **ALICE).close()
        client = RawClient(region.second.port)
        client.send_startup(user="alice", options=f"endpoint={ENDPOINT}")
        kind, payload = client.read_message()
        assert kind == b"E"
        assert b"must begin with a PROXY protocol header" in payload
        client.socket.close()


def context_of(own: PeerCertificate, region: Region) -> ssl.SSLContext:
    tls = PeerTls(own)
    tls.trust({SECOND: region.certificates[1].certificate})
    context = tls.connecting_to(SECOND)
    assert context is not None
    return context


def answer_to(
    region: Region, context: ssl.SSLContext, sent: bytes, *, waits_for: bytes = b""
) -> bytes:
    """What the second proxy answers to these bytes from another host, which leaves once it has
    received `waits_for`."""
    client, answer = RawClient(region.second.port), b""
    try:
        client.socket.sendall(PEER_REQUEST)
        client.socket = context.wrap_socket(client.socket)
        client.socket.sendall(sent)
        while waits_for and waits_for not in answer and (more := client.socket.recv(4096)):
            answer += more
        socket.socket.shutdown(client.socket, socket.SHUT_WR)
        return answer + client.read_to_end()
    except (ssl.SSLError, ConnectionError):
        return answer
    finally:
        client.socket.close()
