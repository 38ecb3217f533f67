"""The ways in which clients begin TLS that is passed on unread (`test_passing_tls_on`), and what
proxies do meanwhile."""

import socket
import struct

import psycopg
import pytest

from controlplane.proxy.server import Proxy
from controlplane.proxy.wire.errors import AdministratorShutdown
from controlplane.proxy.wire.tls import TlsIdentity
from tests.proxy.conftest import ENDPOINT
from tests.proxy.peers.test_passing_tls_on import (
    ALICE,
    NAME,
    hello_for,
    passed_on_unread,
    region,
)
from tests.proxy.region import FIRST, SECOND, Region, running_region
from tests.proxy.running_proxy import REGION_HOST, MemoryDirectory
from tests.proxy.wire import RawClient, trusting_context

__all__ = ["region"]
pytestmark = pytest.mark.slow

GSS_REQUEST = struct.pack("!II", 8, 80877104)


def asks_for_a_password(client: RawClient) -> bool:
    client.send_startup(user="alice", database="postgres")
    kind, _ = client.read_message()
    client.socket.close()
    return kind == b"R"


@pytest.mark.parametrize(
    "name",
    [
        NAME.upper(),
        f"{NAME}.",
        f"{ENDPOINT}-pooler.{REGION_HOST}",
        f"{ENDPOINT}-Pooler.{REGION_HOST}",
    ],
)
def test_every_spelling_of_the_host_name_leads_there(region: Region, name: str) -> None:
    before = passed_on_unread()
    client = RawClient(region.first.port)
    client.start_tls(name)
    assert asks_for_a_password(client)
    assert passed_on_unread() == before + 1


def test_a_client_that_asks_for_gss_first_is_passed_on_too(region: Region) -> None:
    before = passed_on_unread()
    client = RawClient(region.first.port)
    client.socket.sendall(GSS_REQUEST)
    assert client.read(1) == b"N"
    client.start_tls(NAME)
    assert asks_for_a_password(client)
    assert passed_on_unread() == before + 1


def test_the_first_proxy_reads_a_client_that_begins_with_the_handshake(region: Region) -> None:
    before = passed_on_unread()
    client = RawClient(region.first.port)
    context = trusting_context()
    context.set_alpn_protocols(["postgresql"])
    client.socket = context.wrap_socket(client.socket, server_hostname=NAME)
    assert asks_for_a_password(client)
    assert passed_on_unread() == before


@pytest.mark.parametrize("replaced", [FIRST, SECOND])
def test_a_proxy_that_is_replaced_keeps_them_until_they_leave(
    region: Region, replaced: str
) -> None:
    proxy = region.first if replaced == FIRST else region.second
    with region.first.connect(ENDPOINT, **ALICE) as connection:
        drained = proxy.drain()
        with pytest.raises(psycopg.OperationalError, match="refused"):
            proxy.connect(ENDPOINT, **ALICE)
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert not drained.done()
    drained.result(20)


def test_a_host_that_refuses_a_name_is_not_asked_for_every_client(
    identity: TlsIdentity, directory: MemoryDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    with running_region(identity, directory, second={"domains": ["other.example"]}) as region:
        region.first.directory.tells_early = True
        for _ in range(3):
            region.first.connect(ENDPOINT, **ALICE).close()
    refusals = [one for one in caplog.records if one.message == "host unreachable"]
    assert len(refusals) == 1


def test_a_client_that_expects_a_handshake_is_sent_nothing_else(region: Region) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        region.introduce(port=silent.getsockname()[1])
        client = RawClient(region.first.port)
        client.request_tls()
        client.socket.sendall(hello_for(NAME))
        asked, _ = silent.accept()
        with asked:
            region.first.call(_end_all(region.first.proxy))
            assert client.read_to_end() == b""


async def _end_all(proxy: Proxy) -> None:
    for session in proxy.sessions.all():
        session.interrupt(AdministratorShutdown())
