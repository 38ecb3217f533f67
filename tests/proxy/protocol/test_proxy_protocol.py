"""A client's real address behind a load balancer, by the PROXY protocol."""

import socket
import ssl
import struct
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from controlplane.proxy.settings import PlainConnections
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.certificates import IssuingIdentity
from controlplane.proxy.wire.startup import SIGNATURE
from tests.proxy.authentication.test_access_rules import rules
from tests.proxy.conftest import ENDPOINT, PASSWORDS
from tests.proxy.running_proxy import MemoryDirectory, RunningProxy, running_proxy
from tests.proxy.wire import RawClient

ALICE: dict[str, Any] = {"user": "alice", "password": PASSWORDS["alice"]}
LOCAL, FORWARDED = 0x20, 0x21
UNSPEC, TCP4, UDP4, TCP6, UNIX = 0x00, 0x11, 0x12, 0x21, 0x31
EVERYWHERE = {"plain_connections": PlainConnections.ALWAYS}
BALANCER = {"load_balancers": [ip_network("127.0.0.0/8")]}


def header(
    source: str | None = None,
    *,
    command: int = FORWARDED,
    family: int | None = None,
    more: bytes = b"",
) -> bytes:
    """Return a header as a load balancer sends it. `more` are its TLVs."""
    if source is None:
        kind, ends = UNSPEC, b""
    else:
        address = ip_address(source)
        kind = TCP4 if address.version == 4 else TCP6
        ends = address.packed * 2 + struct.pack("!HH", 40000, 5432)
    body = ends + more
    return (
        SIGNATURE
        + bytes([command, kind if family is None else family])
        + struct.pack("!H", len(body))
        + body
    )


@pytest.fixture
def behind(identity: IssuingIdentity, directory: MemoryDirectory) -> Iterator[RunningProxy]:
    with running_proxy(identity, directory, **BALANCER, **EVERYWHERE) as proxy:
        yield proxy


def log_in(proxy: RunningProxy, beginning: bytes, *, password: str = PASSWORDS["alice"]) -> bytes:
    """Return `b"R"` if SCRAM accepts the password, otherwise the error."""
    client = RawClient.start_log_in(
        proxy.port, ENDPOINT, user="alice", password=password, beginning=beginning
    )
    kind, payload = client.read_message()
    client.socket.close()
    return kind if kind == b"R" else payload


def first_answer(proxy: RunningProxy, beginning: bytes) -> tuple[bytes, bytes]:
    client = RawClient(proxy.port)
    client.socket.sendall(beginning)
    client.send_startup(user="alice", options=f"endpoint={ENDPOINT}")
    answer = client.read_message()
    client.socket.close()
    return answer


@pytest.mark.parametrize(
    ("source", "allowed"),
    [
        ("203.0.113.9", "203.0.113.0/24"),
        ("2001:db8::9", "2001:db8::/32"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
    ],
)
def test_access_rules_use_the_real_address(behind: RunningProxy, source: str, allowed: str) -> None:
    behind.directory.endpoints[ENDPOINT].rules = rules(allowed)
    tlvs = b"\x04\x00\x03abc" + b"\x02\x00\x0bexample.com"
    for more in (b"", tlvs, b"\x04" + struct.pack("!H", 5000) + bytes(5000)):
        assert log_in(behind, header(source, more=more)) == b"R"
    kind, error = first_answer(behind, header("198.51.100.1"))
    assert kind == b"E"
    assert b"This IP address 198.51.100.1 is not allowed" in error
    assert behind.directory.outsiders == [(ENDPOINT, "alice", "198.51.100.1")]


def test_open_connections_are_checked_by_the_real_address(behind: RunningProxy) -> None:
    client = RawClient.start_log_in(behind.port, ENDPOINT, **ALICE, beginning=header("203.0.113.9"))
    assert client.read_message()[0] == b"R"
    assert behind.enforce_rules(ENDPOINT, rules("203.0.113.9")) == 0
    assert behind.enforce_rules(ENDPOINT, rules("127.0.0.1")) == 1
    client.socket.close()


def test_a_wrong_password_is_recorded_with_the_real_address(behind: RunningProxy) -> None:
    assert b"28P01" in log_in(behind, header("203.0.113.9"), password="wrong")
    assert behind.directory.refusals == [(ENDPOINT, "alice", "203.0.113.9")]


def test_tls_comes_after_the_header(behind: RunningProxy) -> None:
    behind.directory.endpoints[ENDPOINT].rules = rules("203.0.113.9")
    for direct in (False, True):
        client = RawClient(behind.port)
        client.socket.sendall(header("203.0.113.9"))
        if direct:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            context.set_alpn_protocols(["postgresql"])
            name = f"{ENDPOINT}.localhost"
            client.socket = context.wrap_socket(client.socket, server_hostname=name)
        else:
            client.start_tls()
        client.send_startup(user="alice", options=f"endpoint={ENDPOINT}")
        assert client.read_message()[0] == b"R"
        client.socket.close()


def test_a_header_that_arrives_byte_by_byte(behind: RunningProxy) -> None:
    client = RawClient(behind.port)
    for byte in header("203.0.113.9"):
        client.socket.sendall(bytes([byte]))
    client.send_startup(user="alice", options=f"endpoint={ENDPOINT}")
    assert client.read_message()[0] == b"R"
    client.socket.close()


def test_a_cancel_request_has_a_header_too(behind: RunningProxy) -> None:
    client = RawClient(behind.port)
    client.socket.sendall(header("203.0.113.9") + messages.cancel_request(1, b"\0\0\0\0"))
    assert client.read_to_end() == b""


def test_connections_without_tls_are_allowed_by_the_clients_address(
    identity: IssuingIdentity, directory: MemoryDirectory
) -> None:
    with running_proxy(identity, directory, **BALANCER) as proxy:
        _, error = first_answer(proxy, header("203.0.113.9"))
        assert b"connection is insecure" in error
        assert first_answer(proxy, header("127.0.0.1"))[0] == b"R"


def test_connections_of_the_load_balancer_itself_have_its_address(behind: RunningProxy) -> None:
    behind.directory.endpoints[ENDPOINT].rules = rules("127.0.0.1")
    for own in (header(command=LOCAL), header("203.0.113.9", command=LOCAL)):
        assert log_in(behind, own) == b"R"


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"PROXY TCP4 203.0.113.9 127.0.0.1 40000 5432\r\n",
        SIGNATURE + b"\x11\x11\x00\x00",
        header(),
        header("203.0.113.9", command=0x22),
        header("203.0.113.9", family=UDP4),
        header("203.0.113.9", family=TCP6),
        header(family=UNIX, more=bytes(216)),
    ],
    ids=["none", "version 1", "version 1 as 2", "nobody's", "command", "udp", "short", "unix"],
)
def test_a_load_balancer_that_names_no_client_is_refused(
    behind: RunningProxy, beginning: bytes
) -> None:
    kind, error = first_answer(behind, beginning)
    assert kind == b"E"
    assert b"08P01" in error
    assert b"PROXY protocol" in error


def test_headers_of_other_clients_are_refused(proxy: RunningProxy) -> None:
    kind, error = first_answer(proxy, header("203.0.113.9"))
    assert kind == b"E"
    assert b"PROXY protocol headers are not accepted" in error


def test_version_1_lines_of_other_clients_are_refused(proxy: RunningProxy) -> None:
    """Such a line looks like HTTP, but the client behind it speaks Postgres. So must the error."""
    for line in (b"PROXY TCP4 203.0.113.9 127.0.0.1 40000 5432\r\n", b"PROXY UNKNOWN\r\n"):
        client = RawClient(proxy.port)
        client.socket.sendall(line)
        kind, error = client.read_message()
        assert kind == b"E"
        assert b"PROXY protocol headers are not accepted" in error
        assert b"PERCH_PROXY_PROTOCOL_FROM" in error
        client.socket.close()


def test_a_load_balancer_without_a_header_gets_an_error_at_once(behind: RunningProxy) -> None:
    """A client that requests TLS sends eight bytes and waits. After a version 1 line, too, nothing
    more may come."""
    for beginning in (struct.pack("!II", 8, 80877103), b"PROXY UNKNOWN\r\n"):
        client = RawClient(behind.port)
        client.socket.sendall(beginning)
        kind, error = client.read_message()
        assert kind == b"E"
        assert b"must begin with a PROXY protocol header" in error
        client.socket.close()


def test_a_header_is_read_once_per_connection(behind: RunningProxy) -> None:
    kind, error = first_answer(behind, header("203.0.113.9") + header("198.51.100.1"))
    assert kind == b"E"
    assert b"PROXY protocol headers are not accepted" in error


def test_the_longest_header_and_one_with_invalid_tlvs(behind: RunningProxy) -> None:
    """Their TLVs are not read."""
    for more in (bytes(0xFFFF - 12), b"\x04\xff\xff", b"\x03\x00\x04\0\0\0\0", b"\x20"):
        assert first_answer(behind, header("203.0.113.9", more=more))[0] == b"R"


def test_a_local_header_may_contain_any_addresses(behind: RunningProxy) -> None:
    for own in (header(command=LOCAL, family=UNIX, more=bytes(216)), header(command=LOCAL)):
        assert first_answer(behind, own)[0] == b"R"


def test_clients_outside_the_load_balancers_send_no_header(
    identity: IssuingIdentity, directory: MemoryDirectory
) -> None:
    elsewhere = [ip_network("203.0.113.0/24"), ip_network("2001:db8::/32")]
    with running_proxy(identity, directory, load_balancers=elsewhere) as proxy:
        proxy.connect(ENDPOINT, **ALICE).close()
        assert first_answer(proxy, header("203.0.113.9"))[0] == b"E"


def test_a_silent_load_balancer_leaves_nothing_behind(behind: RunningProxy) -> None:
    """Some load balancers check health by only opening a connection."""
    for beginning in (b"", header("203.0.113.9")[:20]):
        with socket.create_connection(("127.0.0.1", behind.port)) as connection:
            connection.sendall(beginning)
