"""A client of a compute itself, without a pooler, from its greeting to its end. Until the compute
has answered for the first time, a client whose compute is stopped is connected to the next one: a
compute that ends without having read what the client asked has done nothing for it."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from controlplane.proxy.directory.interface import Tally
from controlplane.proxy.relaying import compute
from controlplane.proxy.relaying.compute import (
    TEMPORARY_STATES,
    Client,
    ComputeConnection,
    wait_for_input,
)
from controlplane.proxy.relaying.relay import FirstAnswer, Relay
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.channel import WOULD_BLOCK, Channel, closed_on_failure
from controlplane.proxy.wire.destination import Destination
from controlplane.proxy.wire.errors import ENDED, AdministratorShutdown, is_let_go
from controlplane.proxy.wire.readiness import Readiness
from controlplane.proxy.wire.startup import CancelKey

# Postgres may read a longer request in parts, and answer some of it before it has read the rest.
_MAX_KEPT_BYTES = 8192
_ERROR = b"E"


class FirstExchange:
    """Joins a client and its compute until the compute has answered for the first time. From then
    on a relay passes their bytes on.

    `done` is resolved when client and compute are no longer joined. The result is None if the
    connection has ended; then both channels are closed. If the client may go on to another compute,
    its channel is open, `parked` was called, and the result is what that compute must be sent.
    """

    def __init__(
        self,
        client: Channel,
        connection: ComputeConnection,
        *,
        readiness: Readiness,
        sent: Tally,
        parked: Callable[[], None],
        first_answer: FirstAnswer | None = None,
    ) -> None:
        self.done: asyncio.Future[bytes | None] = readiness.loop.create_future()
        self._client = client
        self._compute = connection.channel
        self._readiness = readiness
        self._sent = sent
        self._parked = parked
        self._is_elsewhere = connection.is_elsewhere
        self._first_answer = first_answer
        self._is_over = False
        self._because = ""
        # What the client has asked, and whether the compute's socket has taken it.
        self._asked = b""
        self._is_taken = False
        # What the compute has sent, as long as that may be an error before it ends.
        self._final_message = b""
        # Set once the compute has answered.
        self._relay: Relay | None = None

    def start(self, to_compute: bytes) -> None:
        """Begins to pass bytes on. The client has got the greeting and has sent `to_compute` so
        far."""
        self._readiness.add_reader(self._compute.fileno, self._from_compute)
        self._readiness.add_reader(self._client.fileno, self._from_client)
        if to_compute:
            self._ask(to_compute)

    def interrupt(self, final_message: bytes) -> None:
        """Ends the connection from the outside; see `Relay.interrupt`."""
        if self._relay is not None:
            self._relay.interrupt(final_message)
        elif not self._is_over:
            self._tell(final_message)

    def park(self, because: str) -> None:
        """Notes why the compute stops, which the client is told if the compute ends it."""
        self._because = because
        if self._relay is not None:
            self._relay.explain_end(because)

    def close(self) -> None:
        if self._relay is not None:
            self._relay.close()
        elif not self._is_over:
            self._stop()
            self._client.close()
            self._compute.close()
        if not self.done.done():
            self.done.set_result(None)

    def _from_client(self) -> None:
        try:
            data = self._client.receive(self._client.chunk_size)
        except WOULD_BLOCK:
            return
        except OSError:
            self.close()
            return
        if data:
            self._ask(data)
        elif self._asked:
            # The client sends no more and waits for the answer. The relay meets the same end again.
            self._go_on()
        else:
            self.close()

    def _ask(self, data: bytes) -> None:
        if self._first_answer is not None:
            self._first_answer.asked()
        if self._asked or len(data) > _MAX_KEPT_BYTES or data.startswith(messages.TERMINATE):
            self._go_on(to_compute=data)
            return
        self._asked = data
        try:
            taken = self._compute.send(data)
        except WOULD_BLOCK:
            taken = 0
        except OSError:
            # The compute has ended, which its socket is about to report. Until then nothing more is
            # read from the client.
            self._readiness.remove_reader(self._client.fileno)
            return
        self._is_taken = True
        if taken < len(data):
            self._go_on(to_compute=data[taken:])

    def _from_compute(self) -> None:
        # Reads until nothing is left, because epoll reports a broken socket only once.
        while not self._is_over:
            try:
                data = self._compute.receive(self._compute.chunk_size)
            except WOULD_BLOCK:
                return
            except OSError:
                # The kernel resets a connection whose peer closed it before reading everything.
                self._compute_has_ended(has_read=False)
                return
            if not data:
                self._compute_has_ended(has_read=True)
                return
            self._final_message += data
            if not _may_be_final_message(self._final_message):
                self._go_on()

    def _compute_has_ended(self, *, has_read: bool) -> None:
        # The reset of another host's connection says nothing of what that has read. But that host
        # may have said that nothing was begun.
        lets_go = self._is_elsewhere and is_let_go(self._final_message)
        if self._is_taken and (has_read or self._is_elsewhere) and not lets_go:
            # The compute may have begun to execute the request.
            has_reason = self._final_message and not self._because
            reason = AdministratorShutdown(self._because or ENDED).packet()
            self._tell(self._final_message if has_reason else reason)
            return
        self._stop()
        self._compute.close()
        self._parked()
        self.done.set_result(self._asked)

    def _go_on(self, *, to_compute: bytes = b"") -> None:
        """Hands client and compute over to a relay, which also sends the client what was held."""
        self._stop()
        self._relay = Relay(self._client, self._compute, readiness=self._readiness, sent=self._sent)
        self._relay.explain_end(self._because)
        self._relay.done.add_done_callback(lambda _: self.close())
        self._relay.start(
            to_client=self._final_message,
            to_compute=to_compute,
            previous=messages.READY_FOR_QUERY_PREFIX,
            first_answer=self._first_answer,
        )

    def _tell(self, final_message: bytes) -> None:
        with contextlib.suppress(OSError):  # the client then notices that the connection ends
            self._sent.bytes += self._client.send(final_message)
        self._client.end_output()
        self.close()

    def _stop(self) -> None:
        self._is_over = True
        self._readiness.remove_reader(self._client.fileno)
        self._readiness.remove_reader(self._compute.fileno)


def _may_be_final_message(answer: bytes) -> bool:
    """True if the answer so far is nothing but an error of a compute that stops."""
    if not answer.startswith(_ERROR) or len(answer) >= messages.MAX_ERROR_BYTES:
        return False
    try:
        for _, start, end in messages.complete_messages(answer, limit=messages.MAX_ERROR_BYTES):
            sqlstate = messages.error_sqlstate(answer[start:end])
            return end == len(answer) and sqlstate in TEMPORARY_STATES
    except messages.MalformedMessage:
        return False
    return True


@dataclass(frozen=True)
class DirectClient:
    _client: Client[FirstExchange]
    _destination: Destination
    _readiness: Readiness

    async def serve(self, on_connected: Callable[[], tuple[bytes, CancelKey]]) -> None:
        """See `PooledClient.serve`."""
        connection = await self._connect_to_compute()
        preamble, key = on_connected()
        to_client, known = preamble + connection.greeting(key), connection.statuses()
        resend = b""
        while True:
            unanswered = await self._exchange(connection, to_client, resend)
            if unanswered is None:
                return
            if not unanswered and not await wait_for_input(self._client.channel):
                return
            connection = await self._connect_to_compute()
            statuses = connection.statuses()
            changed = [messages.message(b"S", one) for one in statuses if one not in known]
            to_client, known = b"".join(changed), statuses
            resend = unanswered

    async def _exchange(
        self, connection: ComputeConnection, to_client: bytes, resend: bytes
    ) -> bytes | None:
        """Relays until client and compute are no longer joined; see `FirstExchange.done`. The
        compute is sent `resend` first, then what the client sends."""
        with self._client.counting() as sent:
            exchange = FirstExchange(
                self._client.channel,
                connection,
                readiness=self._readiness,
                sent=sent,
                parked=self._client.detach,
                first_answer=self._client.first_answer(),
            )
            with closed_on_failure(exchange):
                await self._client.channel.write(to_client)
                sent.bytes += len(to_client)
                self._client.attach(connection, exchange)
                exchange.start(resend + self._client.channel.take_ahead())
                return await exchange.done

    async def _connect_to_compute(self) -> ComputeConnection:
        connect = partial(
            compute.connect, parameters=self._destination.parameters, readiness=self._readiness
        )
        return await self._client.connect_to_compute(self._destination, connect)
