"""A client that speaks the Postgres protocol, on its way through the first proxy: from its start-up
message, which the second proxy has received, until that has admitted it. From then on a relay
passes the bytes on."""

import asyncio
import contextlib
from collections.abc import Iterator

from controlplane.proxy.directory.interface import Tally
from controlplane.proxy.limits.connection_limits import Admission
from controlplane.proxy.peers.header import ADMITTED
from controlplane.proxy.relaying.relay import Relay
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.channel import WOULD_BLOCK, Channel
from controlplane.proxy.wire.errors import ConnectionLost, HostUnreachable
from controlplane.proxy.wire.readiness import Readiness

_ERROR = b"E"
# The second proxy's messages before it has admitted a client are short.
_MAX_MESSAGE_BYTES = 65_536


class LeadsElsewhere(Exception):
    """A client that has named its endpoint must be passed on to this host. Raised before the client
    has proved its identity."""

    def __init__(self, host_id: str, admission: Admission) -> None:
        super().__init__(host_id)
        self.host_id = host_id
        # What the client counts as, once the host has admitted it.
        self.admission = admission
        # See `header.PassedOn`.
        self.password: bytes | None = None


class PassedClient:
    """Owns the channel to the second proxy."""

    def __init__(self, client: Channel, peer: Channel, host_id: str, readiness: Readiness) -> None:
        self._client = client
        self._peer = peer
        self._host_id = host_id
        self._readiness = readiness
        # What the client has sent and the peer has not taken yet.
        self._rest = b""

    def close(self) -> None:
        self._peer.close()

    async def is_admitted(self) -> bool:
        """Passes bytes on until the second proxy has admitted the client. Returns False if it has
        refused the client, which has then got the reason.

        Raises ConnectionLost if the client has left, HostUnreachable if the second proxy has.
        """
        upward = self._readiness.loop.create_task(self._pass_upward())
        downward = self._readiness.loop.create_task(self._pass_downward())
        both = (upward, downward)
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        if not downward.cancelled():
            return downward.result()
        upward.result()
        raise AssertionError("the client's bytes are passed on without an end")

    @contextlib.contextmanager
    def relaying(self) -> Iterator[Relay]:
        """Passes bytes on from now on, at most until the end of the block. Returns the relay."""
        relay = Relay(
            self._client, self._peer, readiness=self._readiness, sent=Tally(), received=Tally()
        )
        to_client = self._peer.take_ahead()
        relay.start(to_client=to_client, to_compute=self._rest + self._client.take_ahead())
        try:
            yield relay
        finally:
            relay.close()

    async def _pass_upward(self) -> None:
        """Raises ConnectionLost at the client's end."""
        self._rest += self._client.take_ahead()
        while True:
            self._rest = self._rest or await self._client.read_some()
            try:
                # Nothing may be lost if this task is cancelled between two attempts.
                self._rest = self._rest[self._peer.send(self._rest) :]
            except WOULD_BLOCK:
                await self._peer.until_writable()
            except OSError:
                # The other task meets the same end, and may have a last message to pass on first.
                await asyncio.Event().wait()

    async def _pass_downward(self) -> bool:
        """Returns True once the peer has admitted the client, and False after the peer's error."""
        is_refused = False
        while True:
            try:
                message = await self._read_message()
            except ConnectionLost as error:
                if is_refused:
                    return False
                raise HostUnreachable(self._host_id) from error
            if message == ADMITTED:
                return True
            is_refused = message[:1] == _ERROR
            await self._client.write(message)

    async def _read_message(self) -> bytes:
        head = await self._peer.read(messages.HEADER_SIZE)
        size = int.from_bytes(head[1:], "big") - 4
        if not 0 <= size <= _MAX_MESSAGE_BYTES:
            raise HostUnreachable(self._host_id)
        return head + await self._peer.read(size)
