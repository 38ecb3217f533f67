"""Finds the beginning and end of messages, however their bytes arrive."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.proxy.wire.messages import (
    MAX_MESSAGE_BYTES,
    MalformedMessage,
    Message,
    MessageStream,
    message,
)

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
