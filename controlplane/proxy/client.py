"""What the proxy's ways to a compute know of the connection that they serve: `session.Session`."""

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
    """It is let into a compute, or will be."""

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
    """It speaks Postgres's protocol, which a relay of this kind passes on."""

    def join(self, connection: ComputeConnection, relay: Relay) -> None:
        """It is joined to this."""
        ...

    def part(self) -> None:
        """It is joined to nothing; it may be joined again."""
        ...
