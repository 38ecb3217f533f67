"""Invalid start-up packets do not affect other clients and leave nothing behind: `running_proxy`
checks this after each test."""

import contextlib
import os
import random
import resource
import socket
import ssl
import struct
from typing import Any

import psycopg
import pytest

from controlplane.proxy.wire import messages
from controlplane.proxy.wire.tls import TlsIdentity
from tests.proxy.conftest import ENDPOINT, PASSWORDS
from tests.proxy.running_proxy import MemoryDirectory, RunningProxy, running_proxy
from tests.proxy.wire import RawClient
from tests.support.waiting import wait_for

ALICE: dict[str, Any] = {"user": "alice", "password": PASSWORDS["alice"]}
SSL_REQUEST = struct.pack("!II", 8, 80877103)
GSS_REQUEST = struct.pack("!II", 8, 80877104)


def answer_to(proxy: RunningProxy, data: bytes) -> bytes:
    """Return everything that the proxy answers to these bytes."""
    client = RawClient(proxy.port)
    with contextlib.suppress(OSError):  # the proxy may have closed already
        client.socket.sendall(data)
        client.socket.shutdown(socket.SHUT_WR)
    return client.read_to_end()


def sqlstate(answer: bytes) -> str:
    assert answer[:1] == b"E"
    return messages.error_sqlstate(answer[messages.HEADER_SIZE :])


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\0\0\0\x08", SSL_REQUEST[:7], struct.pack("!II", 100, 196608) + b"user"]
)
def test_the_connection_of_a_short_packet_is_closed(proxy: RunningProxy, data: bytes) -> None:
    assert answer_to(proxy, data) == b""


@pytest.mark.parametrize("size", [0, 7, 10_001, 2**31, 2**32 - 1])
def test_an_impossible_size_is_refused_without_reading(proxy: RunningProxy, size: int) -> None:
    assert sqlstate(answer_to(proxy, struct.pack("!II", size, 196608))) == "08P01"


@pytest.mark.slow
def test_a_huge_packet_is_refused_whatever_follows(proxy: RunningProxy) -> None:
    huge = struct.pack("!II", 1_000_000_000, 196608) + bytes(1_000_000_000)
    client = RawClient(proxy.port)
    with pytest.raises(ConnectionError):
        client.socket.sendall(huge)
    client.socket.close()


@pytest.mark.parametrize(
    ("request_line", "answer"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 404"),
        (b"EHLO x\r\n\r\n", b"HTTP/1.1 400"),
        (b"ssh-2.0-x\r\n", b"E"),
    ],
)
def test_another_protocol_is_refused(
    proxy: RunningProxy, request_line: bytes, answer: bytes
) -> None:
    assert answer_to(proxy, request_line).startswith(answer)


def test_random_bytes(proxy: RunningProxy) -> None:
    for seed in range(200):
        generator = random.Random(seed)
        answer_to(proxy, generator.randbytes(generator.randrange(200)))
    proxy.connect(ENDPOINT, **ALICE).close()


def test_random_bytes_as_tls(proxy: RunningProxy) -> None:
    for seed in range(50):
        garbage = random.Random(seed).randbytes(100)
        assert answer_to(proxy, SSL_REQUEST + garbage)[:1] == b"S"
        answer_to(proxy, b"\x16\x03\x01" + garbage)


def test_a_password_of_random_bytes(proxy: RunningProxy) -> None:
    for seed in range(50):
        generator = random.Random(seed)
        client = RawClient(proxy.port)
        client.send_startup(user="alice", options=f"endpoint={ENDPOINT}")
        client.read_message()
        client.send(b"p", b"SCRAM-SHA-256\0" + generator.randbytes(generator.randrange(100)))
        assert sqlstate(client.read_to_end()) == "08P01"


@pytest.mark.parametrize(
    "message",
    [
        messages.message(b"Q", b"SELECT 1\0"),
        messages.message(b"p", b"SCRAM-SHA-1\0\0\0\0\0"),
        messages.message(b"p", b"SCRAM-SHA-256-PLUS\0\0\0\0\0"),
        b"p\xff\xff\xff\xff",
        b"p\0\0\0\0",
    ],
    ids=repr,
)
def test_another_message_than_a_password(proxy: RunningProxy, message: bytes) -> None:
    client = RawClient(proxy.port)
    client.send_startup(user="alice", options=f"endpoint={ENDPOINT}")
    client.read_message()
    client.socket.sendall(message)
    assert sqlstate(client.read_to_end()) == "08P01"


def test_gss_encryption_is_declined_and_tls_may_follow(proxy: RunningProxy) -> None:
    client = RawClient(proxy.port)
    client.socket.sendall(GSS_REQUEST)
    assert client.read(1) == b"N"
    client.start_tls()
    client.send_startup(user="alice", options=f"endpoint={ENDPOINT}")
    kind, payload = client.read_message()
    assert (kind, b"SCRAM-SHA-256-PLUS" in payload) == (b"R", True)
    client.socket.close()


def test_endless_requests_for_encryption_are_refused(proxy: RunningProxy) -> None:
    assert sqlstate(answer_to(proxy, GSS_REQUEST * 2)[1:]) == "08P01"


def test_encryption_within_encryption_is_refused(proxy: RunningProxy) -> None:
    client = RawClient(proxy.port)
    client.start_tls()
    client.socket.sendall(SSL_REQUEST)
    assert sqlstate(client.read_to_end()) == "08P01"


def test_bytes_sent_before_tls_are_not_read_as_sent_within_it(
    proxy: RunningProxy,
) -> None:
    """Otherwise an attacker in between could insert messages before the client's own
    (CVE-2021-23214)."""
    smuggled = messages.startup_message({b"user": b"mallory"})
    answer = answer_to(proxy, SSL_REQUEST + smuggled)
    assert answer[:1] == b"S"
    assert b"SCRAM" not in answer


def test_direct_tls_without_alpn_is_refused(proxy: RunningProxy) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    client = RawClient(proxy.port)
    client.socket = context.wrap_socket(client.socket)
    # A client that speaks HTTP may omit ALPN: the first bytes show the protocol.
    client.send_startup(user="alice", database="postgres")
    assert b"without ALPN protocol negotiation extension" in client.read_to_end()


def test_a_negotiated_version_precedes_the_password(proxy: RunningProxy) -> None:
    client = RawClient(proxy.port)
    body = f"user\0alice\0options\0endpoint={ENDPOINT}\0_pq_.x\0y\0\0".encode()
    client.socket.sendall(struct.pack("!II", len(body) + 8, 0x0003270F) + body)
    assert client.read_message() == (b"v", struct.pack("!II", 196610, 1) + b"_pq_.x\0")
    assert client.read_message()[0] == b"R"
    client.socket.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "beginning", [b"", SSL_REQUEST[:5], SSL_REQUEST, b"\x16\x03\x01", GSS_REQUEST], ids=repr
)
def test_a_slow_client_is_disconnected_and_delays_nobody(
    identity: TlsIdentity, directory: MemoryDirectory, beginning: bytes
) -> None:
    with running_proxy(identity, directory, startup_timeout=0.5) as proxy:
        slow = [RawClient(proxy.port) for _ in range(50)]
        for client in slow:
            client.socket.sendall(beginning)
        proxy.connect(ENDPOINT, **ALICE).close()
        for client in slow:
            client.read_to_end()


def test_a_client_that_sends_a_byte_at_a_time_is_served(proxy: RunningProxy) -> None:
    client = RawClient(proxy.port)
    parameters = {b"user": b"alice", b"options": f"endpoint={ENDPOINT}".encode()}
    for byte in messages.startup_message(parameters):
        client.socket.sendall(bytes([byte]))
    assert client.read_message()[0] == b"R"
    client.socket.close()


def test_the_proxy_recovers_when_descriptors_are_free_again(
    identity: TlsIdentity, directory: MemoryDirectory
) -> None:
    with running_proxy(identity, directory) as proxy:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(map(int, os.listdir("/proc/self/fd")))
        waiting: list[socket.socket] = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 30, limits[1]))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                waiting.extend(
                    socket.create_connection(("127.0.0.1", proxy.port)) for _ in range(5_000)
                )
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for connection in waiting:
                connection.close()
        wait_for(lambda: proxy.sessions() == 0, "the sessions to end")
        proxy.connect(ENDPOINT, **ALICE).close()


def test_names_of_invalid_utf_8_are_refused(proxy: RunningProxy) -> None:
    body = b"user\0\xff\xfe\0\0"
    packet = struct.pack("!II", len(body) + 8, 196608) + body
    assert sqlstate(answer_to(proxy, packet)) == "08P01"


def test_a_role_that_is_too_long_is_not_truncated(proxy: RunningProxy) -> None:
    """Postgres would truncate it to 63 bytes, which is the name of another role."""
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        proxy.connect(ENDPOINT, user="alice" + "x" * 60, password=PASSWORDS["alice"])
