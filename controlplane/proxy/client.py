"""The interface of a client's connection (`session.Session`) for the modules that lead it to a
compute."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Protocol, TypeVar

from controlplane.proxy.channel import Channel
from controlplane.proxy.compute import ComputeConnection
from controlplane.proxy.directory import ComputeAddress
from controlplane.proxy.routing import Destination
from controlplane.proxy.traffic import Tally

Reached = TypeVar("Reached")
Relay = TypeVar("Relay", contravariant=True)


class Reaching(Protocol):
    """A client that has been admitted to a compute, or will be."""

    @property
    def channel(self) -> Channel: ...

    async def reach(
        self,
        destination: Destination,
        connect: Callable[[ComputeAddress], Awaitable[Reached]],
        *,
        discard: Callable[[Reached], None],
    ) -> Reached: ...

    def share(self) -> AbstractAsyncContextManager[None]: ...

    def counting(self) -> AbstractContextManager[Tally]: ...


class Client(Reaching, Protocol[Relay]):
    """A client that speaks the Postgres protocol, relayed by a relay of this kind."""

    def join(self, connection: ComputeConnection, relay: Relay) -> None:
        """Records that the client is joined to this connection by this relay."""
        ...

    def part(self) -> None:
        """Records that the client is joined to no compute. It may be joined again."""
        ...
