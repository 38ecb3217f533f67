"""Joins a client and its compute: passes bytes both ways unread until one side ends.

Each readiness event costs one write, and one read or, with TLS, a few. If the receiving side is
full, reading from the other side stops until the held bytes are sent, so memory stays bounded.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from controlplane.proxy.directory.interface import RECEIVED, Tally
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.channel import WOULD_BLOCK, Channel
from controlplane.proxy.wire.errors import ENDED, AdministratorShutdown
from controlplane.proxy.wire.messages import MAX_MESSAGE_BYTES
from controlplane.proxy.wire.readiness import Readiness

_TAIL_SIZE = messages.READY_FOR_QUERY_SIZE


class FirstAnswer:
    """How long a client that was woken for waits for its compute's first answer: from its first
    request to that answer. A client that has not asked anything yet is not kept waiting. Calls
    `answered` once, with the seconds between the calls of its two methods."""

    __slots__ = ("_answered", "_asked_at")

    def __init__(self, answered: Callable[[float], None]) -> None:
        self._answered: Callable[[float], None] | None = answered
        self._asked_at: float | None = None

    def asked(self) -> None:
        """Must be called when the client has sent something; may be called again."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()

    def came(self) -> None:
        """Must be called when the compute has sent something; may be called again."""
        if self._asked_at is not None and self._answered is not None:
            answered, self._answered = self._answered, None
            answered(time.monotonic() - self._asked_at)


class Joint:
    """A client and its compute, or pooler, joined by two pumps until `done` is resolved."""

    done: "asyncio.Future[bytes | None]"
    _client: Channel
    _compute: Channel
    _upward: "Pump"
    _downward: "Pump"
    _closed = False

    def interrupt(self, final_message: bytes) -> None:
        """Ends the connection from the outside. The client gets `final_message` only if the
        compute's answer was complete, so that it does not appear in the middle of a message."""
        if self._closed:
            return
        if self._downward.is_idle and self._is_between_messages():
            self._downward.push(final_message)
        self._end()

    def close(self) -> None:
        if self._closed:
            return
        self._stop()
        self._client.close()
        if not self.done.done():
            self.done.set_result(None)

    def _is_between_messages(self) -> bool:
        """True if the bytes that the client is sent next begin a message."""
        return self._downward.tail.startswith(messages.READY_FOR_QUERY_PREFIX)

    def _end(self) -> None:
        if not self._closed:
            self._client.end_output()
            self.close()

    def _stop(self) -> None:
        self._closed = True
        self._upward.stop()
        self._downward.stop()
        self._compute.close()


class Relay(Joint):
    """`done` is resolved, and both channels are closed, when the joint connection has ended. Bytes
    sent to the client are counted in `sent` at once, however long the connection lasts; those that
    the client has sent, in `received`."""

    def __init__(
        self,
        client: Channel,
        compute: Channel,
        *,
        readiness: Readiness,
        sent: Tally,
        received: Tally = RECEIVED,
    ) -> None:
        self.done = readiness.loop.create_future()
        self._because = ""
        self._client = client
        self._compute = compute
        # If the client's connection breaks, everything ends at once. If the compute's does, the
        # compute may have sent a final error, which is still read.
        self._upward = Pump(
            readiness,
            source=client,
            sink=compute,
            source_ended=compute.end_output,
            source_broke=self.close,
            sink_broke=lambda: self._upward.stop(),
            tally=received,
        )
        self._downward = Pump(
            readiness,
            source=compute,
            sink=client,
            source_ended=self._compute_ended,
            source_broke=self._compute_ended,
            sink_broke=self.close,
            tally=sent,
        )

    def start(
        self,
        *,
        to_client: bytes,
        to_compute: bytes,
        previous: bytes = b"",
        first_answer: FirstAnswer | None = None,
    ) -> None:
        """Sends the bytes that the start-up left over, then relays. `previous` is the end of what
        the client has been sent before."""
        self._downward.tail = previous
        if self._because:
            to_client = self._explained(to_client)
        if first_answer is not None and to_client:
            first_answer.came()
            first_answer = None
        self._downward.start(to_client, received=first_answer.came if first_answer else None)
        if not self._closed:
            self._upward.start(to_compute)

    def explain_end(self, because: str) -> None:
        """From now on, says why if the compute ends the connection with 57P01; "" if it is not
        expected to."""
        self._because = because
        self._downward.process = self._pass_explained if because else None

    def _pass_explained(self, data: bytes) -> None:
        self._downward.push(self._explained(data))

    def _explained(self, data: bytes) -> bytes:
        """Returns what the client gets for these bytes of the compute's."""
        if not self._is_between_messages():
            return data  # it may begin within a message
        with suppress(messages.MalformedMessage):
            for kind, start, end in messages.complete_messages(data, limit=MAX_MESSAGE_BYTES):
                sqlstate = messages.error_sqlstate(data[start:end]) if kind == b"E" else ""
                if sqlstate == AdministratorShutdown.sqlstate and end == len(data):
                    before = data[: start - messages.HEADER_SIZE]
                    return before + AdministratorShutdown(self._because).packet()
        return data

    def _compute_ended(self) -> None:
        """Ends the connection. Postgres tells the client why, unless it was killed; then this
        does."""
        if self._upward.tail.endswith(messages.TERMINATE):
            self._end()
        else:
            self.interrupt(AdministratorShutdown(self._because or ENDED).packet())


class Pump:
    """One direction of a relay. It watches its source for reading. While it holds bytes, it watches
    its sink for writing instead."""

    __slots__ = (
        "_held",
        "_hold_more",
        "_passed",
        "_readiness",
        "_receive",
        "_send",
        "_sink",
        "_sink_broke",
        "_source",
        "_source_broke",
        "_source_ended",
        "_tally",
        "process",
        "tail",
    )

    def __init__(
        self,
        readiness: Readiness,
        *,
        source: Channel,
        sink: Channel,
        source_ended: Callable[[], None],
        source_broke: Callable[[], None],
        sink_broke: Callable[[], None],
        tally: Tally,
        process: Callable[[bytes], None] | None = None,
        passed: Callable[[], None] | None = None,
    ) -> None:
        """`process` is called with what is received, if given, and may `push` it. `passed` is
        called once held bytes have been sent."""
        self._readiness = readiness
        self._source = source.fileno
        self._sink = sink.fileno
        chunk = partial(source.receive, source.chunk_size)
        self._receive = source.receive_burst if process is None else chunk
        self._send = sink.send
        self._hold_more = sink.hold_more
        self._source_ended = source_ended
        self._source_broke = source_broke
        self._sink_broke = sink_broke
        self._tally = tally
        self._held: memoryview | None = None
        self.tail = b""
        self.process = process
        self._passed = passed

    @property
    def is_idle(self) -> bool:
        return self._held is None

    def start(self, data: bytes, *, received: Callable[[], None] | None = None) -> None:
        """Sends `data`, then passes on what it receives. Calls `received` once, with the first of
        that."""
        if received is None:
            self._readiness.add_reader(self._source, self._pass_on)
        else:
            self._readiness.add_reader(self._source, partial(self._pass_on_first, received))
        if data:
            self.push(data)

    def stop(self) -> None:
        self._readiness.remove_reader(self._source)
        self._readiness.remove_writer(self._sink)

    def push(self, data: bytes) -> None:
        try:
            sent = self._send(data)
        except WOULD_BLOCK:
            sent = 0
        except OSError:
            self._sink_broke()
            return
        self._tally.bytes += sent
        if sent == len(data):
            self.tail = data[-_TAIL_SIZE:]
        else:
            self._hold(memoryview(data)[sent:])

    def _pass_on_first(self, received: Callable[[], None]) -> None:
        self._readiness.add_reader(self._source, self._pass_on)
        received()
        self._pass_on()

    def _pass_on(self) -> None:
        # `push` inlined, which saves a call for every message.
        try:
            data = self._receive()
        except WOULD_BLOCK:
            return
        except OSError:
            self._source_broke()
            return
        if not data:
            self._readiness.remove_reader(self._source)
            self._source_ended()
            return
        if self.process is not None:
            self.process(bytes(data))
            return
        try:
            sent = self._send(data)
        except WOULD_BLOCK:
            sent = 0
        except OSError:
            self._sink_broke()
            return
        self._tally.bytes += sent
        if sent == len(data):
            self.tail = bytes(data[-_TAIL_SIZE:])
        else:
            self._hold(memoryview(bytes(data[sent:])))

    def _hold(self, rest: memoryview) -> None:
        self._held = rest
        self._hold_more()
        self._readiness.remove_reader(self._source)
        self._readiness.add_writer(self._sink, self._flush)

    def _flush(self) -> None:
        assert self._held is not None
        try:
            sent = self._send(self._held)
        except WOULD_BLOCK:
            return
        except OSError:
            self._sink_broke()
            return
        self._tally.bytes += sent
        if sent < len(self._held):
            self._held = self._held[sent:]
            return
        self.tail = bytes(self._held[-_TAIL_SIZE:])
        self._held = None
        self._readiness.remove_writer(self._sink)
        self._readiness.add_reader(self._source, self._pass_on)
        if self._passed is not None:
            self._passed()
