"""The proxy as a client of a compute. It connects to the compute's unix socket, sends the start-up
message of a client that has authenticated, and reads the greeting. Beside it stands the interface
of that client's connection (`session.Session`)."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from controlplane.compute.host.accounts import is_served_by
from controlplane.proxy.directory.interface import ComputeAddress, Tally
from controlplane.proxy.relaying.relay import FirstAnswer
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.channel import Channel, Closable, closed_on_failure
from controlplane.proxy.wire.destination import Destination
from controlplane.proxy.wire.errors import (
    AdministratorShutdown,
    ComputeRefused,
    ComputeUnreachable,
    ConnectionLost,
    HostUnreachable,
)
from controlplane.proxy.wire.readiness import Readiness
from controlplane.proxy.wire.startup import CancelKey

_MAX_GREETING_BYTES = 65536
_AUTHENTICATION_OK = b"\0\0\0\0"
# A unix socket whose listen queue is full refuses at once. Postgres empties it as fast as it forks.
_CONNECT_RETRY_DELAY = 0.01
# SQLSTATEs of a compute that is starting or stopping: the proxy wakes it and tries again.
TEMPORARY_STATES = {ComputeUnreachable.sqlstate, AdministratorShutdown.sqlstate, "57P02"}

# The SQLSTATE of every PgBouncer error, for a client's mistake as well as for a dead compute.
POOLER_ERROR_STATE = "08P01"


class ComputeGone(Exception):
    """Nothing answers at the address, or the compute there is starting or stopping."""

    def __init__(self, reason: str, *, packet: bytes | None = None, final: bool = False) -> None:
        super().__init__(reason)
        # The compute's own ErrorResponse, for a client that cannot wait any longer.
        self.packet = packet
        # True if the same compute, if it turns out to run, will refuse again in the same way.
        self.final = final


@dataclass(frozen=True, slots=True)
class ComputeConnection:
    channel: Channel
    address: ComputeAddress
    cancel_key: CancelKey
    # The compute's messages from AuthenticationOk to ReadyForQuery, before and after its
    # BackendKeyData. A client gets the proxy's own BackendKeyData in place of that.
    greeting_before_key: bytes
    greeting_after_key: bytes

    @property
    def is_elsewhere(self) -> bool:
        """True if the compute is on another host."""
        return self.address.elsewhere is not None

    def greeting(self, key: CancelKey) -> bytes:
        key_message = messages.backend_key_data(key.pid, key.secret)
        return self.greeting_before_key + key_message + self.greeting_after_key

    def statuses(self) -> list[bytes]:
        """Returns the payloads of the greeting's ParameterStatus messages."""
        greeting = self.greeting_before_key + self.greeting_after_key
        found = messages.complete_messages(greeting, limit=len(greeting))
        return [greeting[start:end] for kind, start, end in found if kind == b"S"]

    def close(self) -> None:
        self.channel.close()


@contextmanager
def closed_on_error(channel: Channel) -> Iterator[None]:
    """Closes the channel to a compute if the block fails. Raises ComputeGone if the compute closes
    the connection in the block, ComputeUnreachable if its answer violates the protocol."""
    try:
        with closed_on_failure(channel):
            yield
    except ConnectionLost as error:
        raise ComputeGone("the compute closed the connection") from error
    except messages.MalformedMessage as error:
        raise ComputeUnreachable from error


async def connect(
    address: ComputeAddress, parameters: dict[bytes, bytes], *, readiness: Readiness
) -> ComputeConnection:
    """Starts a session with these start-up parameters.

    Raises ComputeGone if waking the compute may help, ComputeRefused with the compute's own error
    if it refused the session, ComputeUnreachable if its answer violates the protocol.
    """
    channel = await _open(address, readiness)
    with closed_on_error(channel):
        await channel.write(messages.startup_message(parameters))
        return await _read_greeting(channel, address)


async def cancel(address: ComputeAddress, key: CancelKey, *, readiness: Readiness) -> None:
    """Asks the compute to cancel the query that runs under the key, and waits until the compute has
    received that. Does nothing if the compute is gone."""
    try:
        channel = await _open(address, readiness, to_cancel=True)
    except ComputeGone:
        return
    try:
        await channel.write(messages.cancel_request(key.pid, key.secret))
        await channel.read(1)
    except ConnectionLost:
        return
    finally:
        channel.close()


async def _open(
    address: ComputeAddress, readiness: Readiness, *, to_cancel: bool = False
) -> Channel:
    if address.elsewhere is not None:
        try:
            return await address.elsewhere.open(to_cancel=to_cancel)
        except HostUnreachable as error:
            raise ComputeGone(str(error), packet=error.packet()) from error
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    with closed_on_failure(connection):
        while True:
            try:
                connection.connect(str(address.socket))
            except BlockingIOError:
                await asyncio.sleep(_CONNECT_RETRY_DELAY)
            except OSError as error:
                raise ComputeGone(f"{address.socket}: {error.strerror}") from error
            else:
                break
        # Before anything is sent: the socket's server must belong to this endpoint.
        if not is_served_by(connection, address.socket.parent):
            raise ComputeGone(f"{address.socket} is not the endpoint's own")
        return Channel(connection, readiness)


async def _read_greeting(channel: Channel, address: ComputeAddress) -> ComputeConnection:
    """Reads the whole greeting. A client that has not received all of it, because the compute was
    stopped, can still be connected to another compute.

    Each message is looked at once: the compute is untrusted, and may send single bytes."""
    greeting = bytearray()
    key: tuple[int, int] | None = None
    read = 0
    while len(greeting) < _MAX_GREETING_BYTES:
        greeting += await channel.read_some()
        for kind, start, end in messages.complete_messages(
            greeting, limit=_MAX_GREETING_BYTES, position=read
        ):
            payload = bytes(greeting[start:end])
            read = end
            if kind == b"K":
                key = start, end
            elif kind == b"Z" and key is not None:
                if address.elsewhere is not None and end < len(greeting):
                    raise ComputeGone("the compute's host has let go of the client at once")
                return _greeted(channel, address, bytes(greeting), key)
            elif kind == b"E":
                _raise_refusal(address, messages.message(kind, payload), payload)
            elif kind == b"R" and payload != _AUTHENTICATION_OK:
                # The compute must trust its socket, because only the platform can reach that.
                raise messages.MalformedMessage("the compute asks for a password")
    raise messages.MalformedMessage("the compute's greeting is too long")


def _greeted(
    channel: Channel, address: ComputeAddress, greeting: bytes, key: tuple[int, int]
) -> ComputeConnection:
    start, end = key
    return ComputeConnection(
        channel=channel,
        address=address,
        cancel_key=CancelKey(
            int.from_bytes(greeting[start : start + 4], "big"), greeting[start + 4 : end]
        ),
        greeting_before_key=greeting[: start - messages.HEADER_SIZE],
        greeting_after_key=greeting[end:],
    )


def _raise_refusal(address: ComputeAddress, packet: bytes, payload: bytes) -> None:
    sqlstate = messages.error_sqlstate(payload)
    if address.elsewhere is not None and sqlstate != AdministratorShutdown.sqlstate:
        # The other host has tried what can be tried.
        raise ComputeRefused(packet)
    if sqlstate in TEMPORARY_STATES:
        raise ComputeGone("the compute is starting or stopping", packet=packet)
    if sqlstate == POOLER_ERROR_STATE:
        raise ComputeGone("the pooler refuses the client", packet=packet, final=True)
    raise ComputeRefused(packet)


Connection = TypeVar("Connection", bound=Closable)
Relay = TypeVar("Relay", contravariant=True)


class Client(Protocol[Relay]):
    """A client that speaks the Postgres protocol and has been admitted to a compute, relayed by a
    relay of this kind."""

    @property
    def channel(self) -> Channel: ...

    async def connect_to_compute(
        self, destination: Destination, connect: Callable[[ComputeAddress], Awaitable[Connection]]
    ) -> Connection: ...

    def counting(self) -> AbstractContextManager[Tally]: ...

    def attach(self, connection: ComputeConnection, relay: Relay) -> None:
        """Records that the client is joined to this connection by this relay."""

    def first_answer(self) -> FirstAnswer | None:
        """Returns what has to be told of the next answer, for a client whose compute was woken;
        otherwise None."""

    def detach(self) -> None:
        """Records that the client is joined to no compute. It may be joined again."""


async def wait_for_input(client: Channel, *, is_within: bool = False) -> bool:
    """Waits until the client sends something. Returns False if that is a Terminate message.

    `is_within` says that the client is in the middle of a message, so its next bytes cannot be a
    Terminate message. What it sends is left for `take_ahead`. Raises ConnectionLost.
    """
    while True:
        ahead = await client.look_ahead()
        if is_within:
            return True
        if ahead.startswith(messages.TERMINATE):
            return False
        if not messages.TERMINATE.startswith(ahead):
            return True
        await client.read_ahead()
