"""The first bytes of a connection."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.proxy.wire import messages, startup
from controlplane.proxy.wire.errors import ProtocolViolation, ProxyError, UnsupportedProtocol
from controlplane.proxy.wire.startup import CancelRequest, EncryptionRequest, StartupMessage

NAMES = st.binary(min_size=1, max_size=20).filter(lambda name: b"\0" not in name)


def packet(code: int, body: bytes = b"") -> bytes:
    return struct.pack("!II", len(body) + 8, code) + body


def startup_packet(version: int = messages.PROTOCOL_3_0, **parameters: str) -> bytes:
    body = b"".join(f"{name}\0{value}\0".encode() for name, value in parameters.items())
    return packet(version, body + b"\0")


def test_a_startup_message_is_parsed() -> None:
    message = startup.parse(startup_packet(user="alice", database="shop"))
    assert message == StartupMessage(
        role="alice",
        parameters={b"user": b"alice", b"database": b"shop"},
        protocol=messages.PROTOCOL_3_0,
    )


def test_requests_for_encryption_are_distinguished() -> None:
    assert startup.parse(packet(80877103)) == EncryptionRequest(tls=True)
    assert startup.parse(packet(80877104)) == EncryptionRequest(tls=False)


@pytest.mark.parametrize("secret", [b"\1\2\3\4", bytes(32), bytes(256)])
def test_a_cancel_request_is_parsed_with_a_key_of_any_length(secret: bytes) -> None:
    assert startup.parse(messages.cancel_request(7, secret)) == CancelRequest(7, secret)


@pytest.mark.parametrize("secret", [b"", bytes(257)])
def test_a_cancel_request_with_an_impossible_key_is_refused(secret: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        startup.parse(messages.cancel_request(7, secret))


@pytest.mark.parametrize("version", [(2, 0), (4, 0), (0, 0), (1234, 5670)])
def test_other_major_versions_are_refused(version: tuple[int, int]) -> None:
    major, minor = version
    with pytest.raises(UnsupportedProtocol, match=f"unsupported frontend protocol {major}.{minor}"):
        startup.parse(startup_packet(major << 16 | minor, user="alice"))


def test_a_client_of_protocol_2_gets_an_error_it_can_read() -> None:
    assert UnsupportedProtocol(2, 0).packet().startswith(b"EFATAL:  unsupported frontend")
    assert UnsupportedProtocol(4, 0).packet().startswith(b"E\0\0\0")


def test_protocol_3_2_is_supported() -> None:
    message = startup.parse(startup_packet(messages.PROTOCOL_3_2, user="alice"))
    assert isinstance(message, StartupMessage)
    assert message.protocol == messages.PROTOCOL_3_2
    assert message.negotiation == b""


def test_a_newer_minor_version_is_negotiated_down() -> None:
    message = startup.parse(startup_packet(0x0003270F, user="alice"))
    assert isinstance(message, StartupMessage)
    assert message.protocol == messages.PROTOCOL_3_2
    assert message.negotiation == messages.negotiate_protocol_version(messages.PROTOCOL_3_2, [])


def test_unknown_protocol_options_are_named_and_not_forwarded() -> None:
    body = b"user\0alice\0_pq_.magic\0" + b"1\0\0"
    message = startup.parse(packet(messages.PROTOCOL_3_0, body))
    assert isinstance(message, StartupMessage)
    assert message.parameters == {b"user": b"alice"}
    assert b"_pq_.magic\0" in message.negotiation


@pytest.mark.parametrize(
    "body",
    [b"", b"user", b"user\0alice", b"user\0alice\0", b"user\0\0", b"\0\0", b"user\0a\0\0\0"],
    ids=repr,
)
def test_a_malformed_body_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        startup.parse(packet(messages.PROTOCOL_3_0, body))


def test_a_user_is_required() -> None:
    with pytest.raises(ProtocolViolation, match="no PostgreSQL user name"):
        startup.parse(startup_packet(database="shop"))


@given(st.binary(min_size=startup.HEAD_SIZE, max_size=300))
def test_random_bytes_are_parsed_or_refused(data: bytes) -> None:
    with contextlib.suppress(ProxyError):
        startup.parse(data)


@given(st.dictionaries(NAMES, NAMES, max_size=8))
def test_parameters_reach_the_compute_unchanged(parameters: dict[bytes, bytes]) -> None:
    parameters = {name: v for name, v in parameters.items() if not name.startswith(b"_pq_.")}
    parameters[b"user"] = b"alice"
    message = startup.parse(messages.startup_message(parameters))
    assert isinstance(message, StartupMessage)
    assert message.parameters == parameters
