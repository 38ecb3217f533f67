"""The proxy as a client of a compute: connects to its unix socket, sends the start-up message of a
client that has shown its password, and reads the greeting."""

import asyncio
import socket
from dataclasses import dataclass

from controlplane.compute.accounts import is_served_by
from controlplane.proxy import messages
from controlplane.proxy.channel import Channel
from controlplane.proxy.directory import ComputeAddress
from controlplane.proxy.errors import (
    AdministratorShutdown,
    ComputeRefused,
    ComputeUnreachable,
    ConnectionLost,
)
from controlplane.proxy.readiness import Readiness

_LONGEST_GREETING = 65536
_AUTHENTICATION_OK = b"\0\0\0\0"
# A full listen queue on a unix socket refuses at once, and empties as fast as Postgres forks.
_QUEUE_PAUSE_SECONDS = 0.01
# What a compute says while it starts or stops: wake it, and try again.
PASSING_STATES = {ComputeUnreachable.sqlstate, AdministratorShutdown.sqlstate, "57P02"}

# What PgBouncer says of everything, a client's mistakes as well as a compute that has died.
POOLERS_STATE = "08P01"


class ComputeGone(Exception):
    """Nothing answers at the address, or what answers is just starting or stopping."""

    def __init__(self, reason: str, *, packet: bytes | None = None, final: bool = False) -> None:
        super().__init__(reason)
        # The compute's own ErrorResponse, for a client that cannot wait longer.
        self.packet = packet
        # Whether the same compute, if it is found to run, will say the same again.
        self.final = final


@dataclass(frozen=True, slots=True)
class CancelKey:
    """What ends a running query of one connection, asked for on another one."""

    pid: int
    secret: bytes


@dataclass(frozen=True, slots=True)
class ComputeConnection:
    channel: Channel
    address: ComputeAddress
    cancel_key: CancelKey
    # What the compute said from AuthenticationOk to ReadyForQuery, in the parts before and after
    # its BackendKeyData, which a client gets the proxy's own in place of.
    greeting_before_key: bytes
    greeting_after_key: bytes

    def greeting(self, key: CancelKey) -> bytes:
        key_message = messages.backend_key_data(key.pid, key.secret)
        return self.greeting_before_key + key_message + self.greeting_after_key


async def connect(
    address: ComputeAddress,
    parameters: dict[bytes, bytes],
    *,
    readiness: Readiness,
) -> ComputeConnection:
    """Starts a session with these start-up parameters.

    Raises ComputeGone where waking it may help, ComputeRefused with the compute's own error where
    it turned the session away, ComputeUnreachable where it speaks otherwise than expected.
    """
    channel = await _open(address, readiness)
    try:
        await channel.write(messages.startup_message(parameters))
        return await _read_greeting(channel, address)
    except ConnectionLost as error:
        channel.close()
        raise ComputeGone("the compute closed the connection") from error
    except messages.MalformedMessage as error:
        channel.close()
        raise ComputeUnreachable from error
    except BaseException:
        channel.close()
        raise


async def cancel(address: ComputeAddress, key: CancelKey, *, readiness: Readiness) -> None:
    """Asks the compute to cancel what runs under the key, and waits until it has been heard."""
    try:
        channel = await _open(address, readiness)
    except ComputeGone:
        return
    try:
        await channel.write(messages.cancel_request(key.pid, key.secret))
        await channel.read(1)
    except ConnectionLost:
        return
    finally:
        channel.close()


async def _open(address: ComputeAddress, readiness: Readiness) -> Channel:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        while True:
            try:
                connection.connect(str(address.socket))
            except BlockingIOError:
                await asyncio.sleep(_QUEUE_PAUSE_SECONDS)
            except OSError as error:
                raise ComputeGone(f"{address.socket}: {error.strerror}") from error
            else:
                break
        # Before anything is said: what is listened to here must be this endpoint's.
        if not is_served_by(connection, address.socket.parent):
            raise ComputeGone(f"{address.socket} leads elsewhere")
        return Channel(connection, readiness)
    except BaseException:
        connection.close()
        raise


async def _read_greeting(channel: Channel, address: ComputeAddress) -> ComputeConnection:
    """To its end: who has not heard it all, as the compute was stopped, can be led to the next."""
    greeting = b""
    while len(greeting) < _LONGEST_GREETING:
        greeting += await channel.read_some()
        key: tuple[int, int] | None = None
        for kind, start, end in messages.complete_messages(greeting, limit=_LONGEST_GREETING):
            payload = greeting[start:end]
            if kind == b"K":
                key = start, end
            elif kind == b"Z" and key is not None:
                return _greeted(channel, address, greeting, key)
            elif kind == b"E":
                _raise_refusal(messages.message(kind, payload), payload)
            elif kind == b"R" and payload != _AUTHENTICATION_OK:
                # The compute must trust its socket, which only the proxy can reach.
                raise messages.MalformedMessage("the compute asks for a password")
    raise messages.MalformedMessage("the compute does not come to an end of its greeting")


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


def _raise_refusal(packet: bytes, payload: bytes) -> None:
    sqlstate = messages.error_sqlstate(payload)
    if sqlstate in PASSING_STATES:
        raise ComputeGone("the compute is starting or stopping", packet=packet)
    if sqlstate == POOLERS_STATE:
        raise ComputeGone("the pooler refuses the client", packet=packet, final=True)
    raise ComputeRefused(packet)
