"""A session in a compute with the proxy as the client. Statements are sent by the extended
protocol, with all values as text. The compute, and everything read from it, is untrusted."""

import asyncio
import contextlib
import struct
import time
from collections.abc import Awaitable, Callable
from functools import partial

from controlplane.proxy.over_http.request import (
    MAX_RESPONSE_BYTES,
    RequestRefused,
    ResponseTooLarge,
    StatementFailed,
    UnreadableAnswer,
)
from controlplane.proxy.over_http.results import Results
from controlplane.proxy.over_http.statements import Batch, Statement
from controlplane.proxy.relaying import compute
from controlplane.proxy.relaying.compute import ComputeConnection
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.channel import WOULD_BLOCK
from controlplane.proxy.wire.errors import AdministratorShutdown, ConnectionLost
from controlplane.proxy.wire.readiness import Readiness

# The protocol's own limit. The limit of an answer's size bounds how much is read of a message.
_MAX_MESSAGE_BYTES = 2**31 - 1
# The most bytes of a message that answers none of a batch's statements.
_MAX_SKIPPED_BYTES = 65_536
# The most bytes that are written without reading meanwhile. An idle session's socket takes them.
_MAX_UNREAD_WRITE_BYTES = 32_768
# Seconds in which a used session must be clean again, and in which its compute must accept a cancel
# request.
_CLEAN_TIMEOUT = 5.0
_CANCEL_TIMEOUT = 5.0

# Returns what the function returns, which converts so many bytes.
_Taken = StatementFailed | None
Convert = Callable[[int, Callable[[], _Taken]], Awaitable[_Taken]]

_SYNC = messages.message(b"S", b"")
_EXECUTE = messages.message(b"E", b"\0" + b"\0\0\0\0")
_DESCRIBE = messages.message(b"D", b"P\0")
_NULL = b"\xff\xff\xff\xff"
_IDLE = b"I"


def _statement(statement: Statement) -> bytes:
    parse = messages.message(b"P", b"\0" + statement.query + b"\0\0\0")
    values = b"".join(
        _NULL if value is None else struct.pack("!i", len(value)) + value
        for value in statement.parameters
    )
    count = struct.pack("!H", len(statement.parameters))
    bind = messages.message(b"B", b"\0\0\0\0" + count + values + b"\0\0")
    return parse + bind + _DESCRIBE + _EXECUTE


def _command(text: bytes) -> bytes:
    """Returns the messages of a statement without parameters, of which only the end is reported."""
    parse = messages.message(b"P", b"\0" + text + b"\0\0\0")
    return parse + messages.message(b"B", bytes(8)) + _EXECUTE


def _query(text: bytes) -> bytes:
    return messages.message(b"Q", text + b"\0")


_DISCARD = _query(b"DISCARD ALL")


def batch_messages(batch: Batch) -> bytes:
    """Returns the batch as messages that are sent together. After an error Postgres skips the rest,
    COMMIT included."""
    parts = list(map(_statement, batch.statements))
    if batch.begin is not None:
        parts = [_command(batch.begin), *parts, _command(b"COMMIT")]
    return b"".join([*parts, _SYNC])


class ComputeSession:
    """Must be closed unless it `is_reusable`. Used by one request at a time."""

    def __init__(self, connection: ComputeConnection, readiness: Readiness) -> None:
        self._connection = connection
        self.address = connection.address
        self._channel = connection.channel
        self._readiness = readiness
        self._buffer = bytearray(connection.greeting_after_key)
        # How many ReadyForQuery messages are still to come.
        self._owed = 1
        self._status = _IDLE
        self.began_at = time.monotonic()
        # True while the session is in an unknown state, so that it cannot be used again.
        self.is_broken = False

    async def run(
        self,
        batch: Batch,
        wire: bytes,
        *,
        clean: bool,
        grow: Callable[[int], None],
        convert: Convert,
    ) -> Results:
        """Executes the batch, of which `wire` are the `batch_messages`. With `clean`, the session
        afterwards discards everything that the batch has left in it; `is_reusable` awaits that.

        `grow` is called with the number of further bytes of the answer, and may raise. `convert`
        calls a function that converts so many bytes, where it delays no other client. Raises
        StatementFailed, RequestRefused, ResponseTooLarge, AdministratorShutdown, UnreadableAnswer.
        """
        results = Results(batch)
        self._owed += 1
        if clean:
            wire += _DISCARD
            self._owed += 1
        writing: asyncio.Task[None] | None = None
        self.is_broken = True
        try:
            await self._read_until_ready(2 if clean else 1)
            if len(wire) <= _MAX_UNREAD_WRITE_BYTES:
                await self._channel.write(wire)
            else:
                # Postgres may stop reading until its answers are read.
                writing = self._readiness.loop.create_task(self._channel.write(wire))
            failure = await self._read_results(results, grow, convert)
            if writing is not None:
                await writing
        except ConnectionLost as error:
            raise AdministratorShutdown from error
        except messages.MalformedMessage as error:
            raise UnreadableAnswer from error
        except asyncio.CancelledError:
            self._cancel_running_query()
            raise
        finally:
            if writing is not None and not writing.done():
                writing.cancel()
                with contextlib.suppress(asyncio.CancelledError, ConnectionLost):
                    await writing
        self.is_broken = False
        if self._status != _IDLE:
            await self._roll_back(clean=clean)
        if failure is not None:
            raise failure
        return results

    async def is_reusable(self) -> bool:
        """True if the session is clean and alive. Waits a short time for it to be clean."""
        if self.is_broken:
            return False
        try:
            self._buffer += self._channel.take_ahead()
            if self._owed:
                self._skip_messages(0)
            if self._owed:
                async with asyncio.timeout(_CLEAN_TIMEOUT):
                    await self._read_until_ready(0)
            # A session that the server has ended has that to read.
            self._buffer += self._channel.receive(self._channel.chunk_size)
        except WOULD_BLOCK:
            return not self.is_broken and not self._buffer and self._status == _IDLE
        except (ConnectionLost, TimeoutError, messages.MalformedMessage, OSError):
            pass
        return False

    def close(self) -> None:
        self.is_broken = True
        self._channel.close()

    async def _roll_back(self, *, clean: bool) -> None:
        """Ends the transaction that the batch left open, before the batch's end is reported."""
        self.is_broken = True
        with contextlib.suppress(ConnectionLost, TimeoutError, messages.MalformedMessage):
            async with asyncio.timeout(_CLEAN_TIMEOUT):
                # A DISCARD ALL that was already sent fails within the transaction.
                await self._read_until_ready(0)
                left = 1 if clean else 0
                self._owed = 1 + left
                await self._channel.write(_query(b"ROLLBACK") + _DISCARD * left)
                await self._read_until_ready(left)
                self.is_broken = False

    def _cancel_running_query(self) -> None:
        """Tells the server to cancel what runs, because a server notices a closed connection only
        later."""
        cancelling = self._readiness.loop.create_task(
            _cancel_within(self._connection, self._readiness)
        )
        _cancelling.add(cancelling)
        cancelling.add_done_callback(_cancelling.discard)

    async def _read_until_ready(self, owed: int) -> None:
        """Reads until at most `owed` ReadyForQuery messages are still to come."""
        while self._owed > owed:
            self._skip_messages(owed)
            if self._owed > owed:
                await self._read_more()

    def _skip_messages(self, owed: int) -> None:
        position = 0
        for kind, start, end in messages.complete_messages(self._buffer, limit=_MAX_SKIPPED_BYTES):
            position = end
            if kind == b"Z":
                self._became_ready(start)
                if self._owed <= owed:
                    break
            elif kind == b"E" and self._owed <= 1:
                # The DISCARD ALL has failed, or the server has ended the session.
                self.is_broken = True
        del self._buffer[:position]

    def _became_ready(self, start: int) -> None:
        self._owed -= 1
        self._status = bytes(self._buffer[start : start + 1])

    async def _read_results(
        self, results: Results, grow: Callable[[int], None], convert: Convert
    ) -> StatementFailed | None:
        """Reads up to the batch's ReadyForQuery. Returns the statement's error, if one failed."""
        ready_at = self._owed - 1
        failure: StatementFailed | None = None
        held = 0
        while True:
            if len(self._buffer) >= self._next_message_size():
                take = partial(self._take_messages, results, ready_at)
                found = await convert(len(self._buffer), take)
                failure = failure or found
            size = results.written + len(self._buffer)
            if size > MAX_RESPONSE_BYTES:
                raise ResponseTooLarge(MAX_RESPONSE_BYTES)
            if self._owed <= ready_at:
                return failure
            if size > held:
                grow(size - held)
                held = size
            try:
                await self._read_more()
            except ConnectionLost:
                # If the server has ended the session, it may have said why.
                if failure is not None:
                    raise failure from None
                raise

    def _take_messages(self, results: Results, ready_at: int) -> _Taken:
        """Converts the whole messages in the buffer. Returns the first error among them. May be
        called in another thread, while nothing else uses the buffer."""
        failure: StatementFailed | None = None
        position = 0
        for kind, start, end in messages.complete_messages(self._buffer, limit=_MAX_MESSAGE_BYTES):
            position = end
            if kind == b"D":
                results.add(self._buffer, start, end)
            elif kind == b"T":
                results.describe(self._buffer, start, end)
            elif kind in (b"C", b"I"):
                results.complete(bytes(self._buffer[start:end]))
            elif kind == b"N":
                results.add_notice(bytes(self._buffer[start:end]))
            elif kind == b"E":
                failure = failure or _failure(self._buffer[start:end], results)
            elif kind in (b"G", b"H", b"W"):
                raise RequestRefused(
                    "COPY is not supported over HTTP: connect over WebSocket or TCP instead",
                    sqlstate="0A000",
                )
            elif kind == b"Z":
                self._became_ready(start)
                if self._owed <= ready_at:
                    break
        del self._buffer[:position]
        results.write()
        return failure

    def _next_message_size(self) -> int:
        """Returns how many bytes must be in the buffer before a message can be whole. Raises
        ResponseTooLarge if the next message alone is larger than any answer."""
        if len(self._buffer) < messages.HEADER_SIZE:
            return messages.HEADER_SIZE
        length = int.from_bytes(self._buffer[1 : messages.HEADER_SIZE], "big")
        if length > MAX_RESPONSE_BYTES:
            raise ResponseTooLarge(MAX_RESPONSE_BYTES)
        return 1 + length

    async def _read_more(self) -> None:
        self._buffer += await self._channel.next_ahead()


# Holds tasks that no caller awaits, so that they are not garbage-collected.
_cancelling: set["asyncio.Task[None]"] = set()


async def _cancel_within(connection: ComputeConnection, readiness: Readiness) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CANCEL_TIMEOUT):
            await compute.cancel(connection.address, connection.cancel_key, readiness=readiness)


def _failure(payload: bytearray, results: Results) -> StatementFailed:
    fields = messages.error_fields(payload)
    statement = results.ended if results.is_batch else None
    return StatementFailed(
        fields,
        statement=statement,
        notices=results.notices,
        notices_left_out=results.notices_left_out,
    )
