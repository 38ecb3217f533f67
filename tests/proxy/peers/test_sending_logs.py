"""What another host may send to a compute whose log it receives."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from controlplane.proxy.peers.header import ACCEPTED, Kind, PassedOn
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.startup import PEER_REQUEST
from controlplane.proxy.wire.tls import TlsIdentity
from tests.proxy.peers.test_passing_on_limits import context_of
from tests.proxy.protocol.test_messages import packet
from tests.proxy.region import Region, running_region
from tests.proxy.running_proxy import MemoryDirectory
from tests.proxy.wire import RawClient

pytestmark = pytest.mark.slow

HEADER = PassedOn(kind=Kind.LOG, client_address="127.0.0.1", receiver="lr-calm-river-000001")
RECEIVEWAL = {
    b"user": b"perch_platform",
    b"database": b"replication",
    b"replication": b"true",
    b"application_name": b"lr-calm-river-000001",
    b"options": b"-c wal_sender_timeout=10000",
}


@pytest.fixture
def region(identity: TlsIdentity, directory: MemoryDirectory) -> Iterator[Region]:
    with running_region(identity, directory) as region:
        yield region


@contextmanager
def asking(
    region: Region, startup: bytes, header: PassedOn = HEADER
) -> Iterator[tuple[RawClient, socket.socket]]:
    """Connect as another host that asks for the log, or moves a project. Yields its connection, and
    the end of the one in the compute, or in the worker."""
    ours, theirs = socket.socketpair()
    ours.settimeout(20)

    async def opened(*_: str) -> socket.socket:
        return theirs.dup()

    directory = region.second.directory
    directory.open_log_source = directory.open_receiver = opened  # type: ignore[method-assign,assignment]
    with ours, theirs:
        client = RawClient(region.second.port)
        client.socket.sendall(PEER_REQUEST)
        client.socket = context_of(region.certificates[0], region).wrap_socket(client.socket)
        client.socket.sendall(header.encoded() + startup)
        assert client.read(len(ACCEPTED)) == ACCEPTED
        try:
            yield client, ours
        finally:
            client.socket.close()


def test_a_compute_gets_the_platforms_own_start_up_message(region: Region) -> None:
    sent = messages.startup_message(RECEIVEWAL | {b"application_name": b"another", b"x": b"y"})
    with asking(region, sent + b"behind") as (_, compute):
        del (expected := dict(RECEIVEWAL))[b"database"]
        wanted = messages.startup_message(expected) + b"behind"
        received = b""
        while len(received) < len(wanted):
            received += compute.recv(4096)
        assert received == wanted


@pytest.mark.parametrize("kind", [Kind.LOG, Kind.MOVE])
def test_clients_that_do_not_log_in_end_no_connection_of_another_host(
    identity: TlsIdentity, directory: MemoryDirectory, kind: Kind
) -> None:
    header = replace(HEADER, kind=kind)
    with (
        running_region(identity, directory, second={"max_pending": 2}) as region,
        asking(region, messages.startup_message(RECEIVEWAL), header) as (host, served),
        ExitStack() as silent,
    ):
        assert served.recv(4096)  # the connection is relayed
        clients = [RawClient(region.second.port) for _ in range(5)]
        for client in clients:
            silent.callback(client.socket.close)
        assert clients[2].read_to_end() == b""
        served.sendall(b"log")
        assert host.read(3) == b"log"


def repeated(*pairs: tuple[bytes, bytes]) -> bytes:
    body = b"".join(name + b"\0" + value + b"\0" for name, value in pairs)
    return packet(messages.PROTOCOL_3_0, body + b"\0")


@pytest.mark.parametrize(
    "sent",
    [
        # Postgres would connect to the database, where it executes SQL.
        repeated((b"user", b"a"), (b"replication", b"database"), (b"replication", b"true")),
        repeated((b"user", b"a"), (b"replication", b"true"), (b"replication", b"true")),
        messages.startup_message(RECEIVEWAL | {b"replication": b"database"}),
        messages.startup_message(RECEIVEWAL | {b"replication": b"on"}),
        messages.startup_message(RECEIVEWAL | {b"options": b"-c session_preload_libraries=x"}),
        messages.startup_message(
            RECEIVEWAL | {b"options": b"-c wal_sender_timeout=1 -c log_min_messages=debug5"}
        ),
        messages.cancel_request(1, b"1234"),
    ],
)
def test_a_host_that_asks_for_more_than_the_log_reaches_no_compute(
    region: Region, sent: bytes
) -> None:
    with asking(region, sent) as (client, compute):
        compute.setblocking(False)
        kind, payload = client.read_message()
        assert (kind, messages.error_sqlstate(payload)) == (b"E", "08P01")
        with pytest.raises(BlockingIOError):
            compute.recv(1)
