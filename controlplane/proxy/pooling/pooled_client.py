"""A client of a pooler, from its greeting to its end. It is joined to a pooler's connection, or
parked while nothing of it is left there. A parked client costs no compute anything. When it sends
something, it is connected to its compute like a new client, and its session's state is restored
there."""

from collections.abc import Callable

from controlplane.compute.settings.pooler_settings import KEEPS_PREPARED_STATEMENTS
from controlplane.proxy.directory.interface import ComputeAddress
from controlplane.proxy.pooling.conversation import Conversation
from controlplane.proxy.pooling.pooled_relay import PooledRelay
from controlplane.proxy.pooling.statement_refusal import StatementRefusal
from controlplane.proxy.relaying import compute
from controlplane.proxy.relaying.compute import (
    Client,
    ComputeConnection,
    wait_for_input,
)
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.channel import Channel, closed_on_failure
from controlplane.proxy.wire.destination import APPLIED_BY_POOLER, Destination
from controlplane.proxy.wire.errors import ProtocolViolation
from controlplane.proxy.wire.messages import MessageStream
from controlplane.proxy.wire.readiness import Readiness
from controlplane.proxy.wire.startup import CancelKey

# The first version of PgBouncer that applies a parameter, if not all versions do.
_APPLIED_SINCE = {b"IntervalStyle": (1, 20)}
_SYNC = messages.message(b"S", b"")
_ERROR, _READY = b"EZ"


class PooledClient:
    def __init__(
        self, client: Client[PooledRelay], destination: Destination, readiness: Readiness
    ) -> None:
        self._client = client
        self._destination = destination
        self._readiness = readiness
        self._conversation = Conversation()
        # Depends on the client's first pooler.
        self._refusal = StatementRefusal(refuses_names=False)
        # The values of these parameters in poolers' greetings, before the client changed them.
        self._defaults: dict[bytes, bytes] = {}

    async def serve(self, on_connected: Callable[[], tuple[bytes, CancelKey]]) -> None:
        """Serves the client; returns when the connection has ended.

        `on_connected` is called once the pooler is reached. It returns the bytes for the client
        before the first greeting, and the cancel key for that. Raises ProxyError, ConnectionLost.
        """
        connection = await self._client.connect_to_compute(self._destination, self._connect)
        version = connection.address.pooler_version
        if version is not None and version < KEEPS_PREPARED_STATEMENTS:
            self._refusal = StatementRefusal(refuses_names=True)
        preamble, key = on_connected()
        self._note_parameters(connection)
        to_client = preamble + connection.greeting(key)
        resend = b""
        while True:
            resendable = await self._relay(connection, to_client, resend)
            if resendable is None:
                return
            awaits_answer = self._conversation.awaits_answer
            self._conversation.begin()
            # The client's next bytes may continue something that it has begun to send.
            is_within = bool(resendable) or self._refusal.is_within
            if not awaits_answer and not await wait_for_input(
                self._client.channel, is_within=is_within
            ):
                return
            connection = await self._client.connect_to_compute(self._destination, self._connect)
            to_client, resend = self._note_parameters(connection), resendable

    def _take_ahead(self) -> bytes:
        """Returns what the client has sent already. Raises ProtocolViolation."""
        ahead = self._client.channel.take_ahead()
        try:
            return self._refusal.sent(ahead)
        except messages.MalformedMessage as error:
            raise ProtocolViolation(f"invalid message format: {error}") from error

    async def _relay(
        self, connection: ComputeConnection, to_client: bytes, resend: bytes
    ) -> bytes | None:
        """Relays until client and pooler are no longer joined; see `PooledRelay.done`. The pooler
        is sent `resend` first, then what the client sends."""
        with self._client.counting() as sent:
            relay = PooledRelay(
                self._client.channel,
                connection,
                self._conversation,
                refusal=self._refusal,
                readiness=self._readiness,
                sent=sent,
                parked=self._client.detach,
                first_answer=self._client.first_answer(),
            )
            self._client.attach(connection, relay)
            with closed_on_failure(relay):
                relay.start(to_client=to_client, to_pooler=resend + self._take_ahead())
                return await relay.done

    async def _connect(self, address: ComputeAddress) -> ComputeConnection:
        """Connects to a pooler, and restores the client's prepared statements there. Raises as
        `compute.connect` does."""
        connection = await compute.connect(
            address, self._parameters(address), readiness=self._readiness
        )
        with compute.closed_on_error(connection.channel):
            await self._prepare(connection.channel)
        return connection

    def _parameters(self, address: ComputeAddress) -> dict[bytes, bytes]:
        """Returns the client's start-up parameters, with those that it has changed since."""
        changed = {
            name: value
            for name, value in self._conversation.parameters.items()
            if _is_applied(name, address) and self._defaults.get(name) != value
        }
        names = {name.lower() for name in changed}
        given = self._destination.parameters.items()
        return {**{name: value for name, value in given if name.lower() not in names}, **changed}

    def _note_parameters(self, connection: ComputeConnection) -> bytes:
        """Remembers the parameters in the greeting. Returns the ParameterStatus messages that are
        new to the client."""
        news = b""
        sent = self._parameters(connection.address)
        for status in connection.statuses():
            if self._conversation.note_parameter(status):
                news += messages.message(b"S", status)
        ours = {name.lower() for name in sent}
        for name in APPLIED_BY_POOLER:
            if name.lower() not in ours and name in self._conversation.parameters:
                self._defaults[name] = self._conversation.parameters[name]
        return news

    async def _prepare(self, channel: Channel) -> None:
        """Restores the client's prepared statements in the pooler. A statement that fails, because
        the objects in it are gone, is forgotten. Raises ConnectionLost."""
        statements = self._conversation.statements
        if not statements:
            return
        requests = (messages.message(b"P", payload) + _SYNC for payload in statements.values())
        await channel.write(b"".join(requests))
        answers = MessageStream({_ERROR: 0, _READY: 0})
        answered, failed = 0, set()
        while answered < len(statements):
            for message in answers.feed(await channel.read_some()):
                if message.kind == _ERROR:
                    failed.add(answered)
                else:
                    answered += 1
        self._conversation.forget(
            [name for number, name in enumerate(statements) if number in failed]
        )


def _is_applied(name: bytes, address: ComputeAddress) -> bool:
    version, since = address.pooler_version, _APPLIED_SINCE.get(name)
    return name in APPLIED_BY_POOLER and (version is None or since is None or version >= since)
