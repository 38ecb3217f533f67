"""A client of a compute itself, without a pooler, from its greeting to its end. Until the compute
has answered for the first time, a client whose compute is stopped is connected to the next one."""

from collections.abc import Callable
from functools import partial

from controlplane.proxy.relaying import compute
from controlplane.proxy.relaying.client import Client, wait_for_input
from controlplane.proxy.relaying.compute import CancelKey, ComputeConnection
from controlplane.proxy.relaying.first_exchange import FirstExchange
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.destination import Destination
from controlplane.proxy.wire.readiness import Readiness


class DirectClient:
    def __init__(
        self, client: Client[FirstExchange], destination: Destination, readiness: Readiness
    ) -> None:
        self._client = client
        self._destination = destination
        self._readiness = readiness

    async def serve(self, on_connected: Callable[[], tuple[bytes, CancelKey]]) -> None:
        """See `PooledClient.serve`."""
        connection = await self._connect_to_compute()
        preamble, key = on_connected()
        to_client, known = preamble + connection.greeting(key), _statuses(connection)
        resend = b""
        while True:
            unanswered = await self._exchange(connection, to_client, resend)
            if unanswered is None:
                return
            if not unanswered and not await wait_for_input(self._client.channel):
                return
            connection = await self._connect_to_compute()
            statuses = _statuses(connection)
            to_client, known = b"".join(one for one in statuses if one not in known), statuses
            resend = unanswered

    async def _exchange(
        self, connection: ComputeConnection, to_client: bytes, resend: bytes
    ) -> bytes | None:
        """Relays until client and compute are no longer joined; see `FirstExchange.done`. The
        compute is sent `resend` first, then what the client sends."""
        with self._client.counting() as sent:
            exchange = FirstExchange(
                self._client.channel,
                connection.channel,
                readiness=self._readiness,
                sent=sent,
                parked=self._client.detach,
                is_elsewhere=connection.address.elsewhere is not None,
                first_answer=self._client.first_answer(),
            )
            try:
                await self._client.channel.write(to_client)
                sent.bytes += len(to_client)
                self._client.attach(connection, exchange)
                exchange.start(resend + self._client.channel.take_ahead())
                return await exchange.done
            except BaseException:
                exchange.close()
                raise

    async def _connect_to_compute(self) -> ComputeConnection:
        return await self._client.connect_to_compute(
            self._destination,
            partial(
                compute.connect,
                parameters=self._destination.parameters,
                readiness=self._readiness,
            ),
            discard=lambda unwanted: unwanted.channel.close(),
        )


def _statuses(connection: ComputeConnection) -> list[bytes]:
    """Returns the ParameterStatus messages of the compute's greeting."""
    greeting = connection.greeting_before_key + connection.greeting_after_key
    return [
        messages.message(kind, greeting[start:end])
        for kind, start, end in messages.complete_messages(greeting, limit=len(greeting))
        if kind == b"S"
    ]
