"""The first bytes of a connection are parsed, and the beginning and end of messages are found,
however their bytes arrive."""

import contextlib
import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.proxy.wire import messages, startup
from controlplane.proxy.wire.errors import ProtocolViolation, ProxyError, UnsupportedProtocol
from controlplane.proxy.wire.messages import (
    MAX_MESSAGE_BYTES,
    MalformedMessage,
    Message,
    MessageStream,
    message,
)
from controlplane.proxy.wire.startup import CancelKey, EncryptionRequest, StartupMessage

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
    assert startup.parse(messages.cancel_request(7, secret)) == CancelKey(7, secret)


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
    [
        *(b"", b"user", b"user\0alice", b"user\0alice\0", b"user\0\0", b"\0\0", b"user\0a\0\0\0"),
        b"user\0alice\0user\0bob\0\0",
    ],
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


MESSAGES = st.lists(
    st.tuples(st.sampled_from([b"Q", b"D", b"Z", b"E"]), st.binary(max_size=40)), max_size=12
)
CUTS = st.lists(st.integers(0, 600), max_size=12)
WANTED = {b"Q"[0]: 10, b"Z"[0]: 0}


def cut_up(stream: bytes, cuts: list[int]) -> list[bytes]:
    """Return the stream in pieces, some of which are empty."""
    ends = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(ends)]


@given(MESSAGES, CUTS)
def test_messages_do_not_depend_on_how_bytes_are_split(
    sent: list[tuple[bytes, bytes]], cuts: list[int]
) -> None:
    stream = MessageStream(WANTED)
    pieces = cut_up(b"".join(message(*one) for one in sent), cuts)
    found = [one for piece in pieces for one in stream.feed(piece)]
    assert found == [
        Message(kind[0], payload[: WANTED[kind[0]]], len(payload) <= WANTED[kind[0]])
        for kind, payload in sent
        if kind[0] in WANTED
    ]
    assert stream.is_between


@given(st.binary(min_size=1, max_size=30), st.integers(1, 34))
def test_an_incomplete_message_is_not_returned(payload: bytes, cut: int) -> None:
    whole = message(b"Q", payload)
    stream = MessageStream(WANTED)
    beginning = whole[: min(cut, len(whole) - 1)]
    assert stream.feed(beginning) == []
    assert not stream.is_between
    assert len(stream.feed(whole[len(beginning) :])) == 1
    assert stream.is_between


@pytest.mark.parametrize("length", [0, 3, MAX_MESSAGE_BYTES + 1, 0xFFFF_FFFF])
def test_an_invalid_length_is_refused(length: int) -> None:
    with pytest.raises(MalformedMessage):
        MessageStream(WANTED).feed(b"D" + length.to_bytes(4, "big"))


def test_a_huge_message_uses_little_memory() -> None:
    stream = MessageStream(WANTED)
    stream.feed(b"Q" + MAX_MESSAGE_BYTES.to_bytes(4, "big"))
    for _ in range(4):
        stream.feed(bytes(65536))
    assert len(stream._kept) == WANTED[b"Q"[0]]


def test_of_an_errors_long_fields_the_beginnings_are_kept() -> None:
    given = {"S": "ERROR", "C": "22P02", "D": "d" * 9_000, "M": "é" * 30_000, "W": "w" * 9_000}
    end = {"R": "raise", "H": "h" * 1024}
    payload = b"".join(f"{code}{text}\0".encode() for code, text in {**given, **end}.items())
    left = messages.MAX_FIELD_BYTES - 1024 - len("ERROR22P02raise") - 60_000
    assert messages.error_fields(payload + b"\0") == {
        **given,
        **end,
        "D": "d" * left + "…",
        "W": "…",
    }
    long = messages.error_fields("MÄ".encode() + "€".encode() * 30_000 + b"\0\0")
    assert long == {"M": "Ä" + "€" * 21_844 + "…"}
    assert len(messages.error_fields(b"Mx\0" * 1_000_000)) == 1
