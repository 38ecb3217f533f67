"""The interface of a client's connection (`session.Session`) for the modules that connect it to a
compute, and the wait of a client that is connected to none."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from controlplane.proxy.directory.interface import ComputeAddress
from controlplane.proxy.directory.traffic import Tally
from controlplane.proxy.relaying.compute import ComputeConnection
from controlplane.proxy.relaying.first_answer import FirstAnswer
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.channel import Channel
from controlplane.proxy.wire.destination import Destination

Connection = TypeVar("Connection")
Relay = TypeVar("Relay", contravariant=True)


class AdmittedClient(Protocol):
    """A client that has been admitted to a compute, or will be."""

    @property
    def channel(self) -> Channel: ...

    async def connect_to_compute(
        self,
        destination: Destination,
        connect: Callable[[ComputeAddress], Awaitable[Connection]],
        *,
        discard: Callable[[Connection], None],
    ) -> Connection: ...

    def counting(self) -> AbstractContextManager[Tally]: ...


class Client(AdmittedClient, Protocol[Relay]):
    """A client that speaks the Postgres protocol, relayed by a relay of this kind."""

    def attach(self, connection: ComputeConnection, relay: Relay) -> None:
        """Records that the client is joined to this connection by this relay."""
        ...

    def first_answer(self) -> FirstAnswer | None:
        """Returns what has to be told of the next answer, for a client whose compute was woken;
        otherwise None."""
        ...

    def detach(self) -> None:
        """Records that the client is joined to no compute. It may be joined again."""
        ...


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
