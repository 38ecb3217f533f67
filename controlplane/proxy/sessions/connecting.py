"""Connects an admitted client to its compute. It wakes the compute, and then checks once more that
the client may connect: only from the wake on do changes of the endpoint reach the client."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic

from controlplane.actors import Actor, ActorType, acting_as
from controlplane.proxy.directory.interface import ComputeAddress
from controlplane.proxy.relaying.compute import ComputeGone, Connection
from controlplane.proxy.sessions.admitting import check_address
from controlplane.proxy.sessions.passing_on import find_elsewhere
from controlplane.proxy.sessions.wakes import Wake
from controlplane.proxy.wire.channel import closed_on_failure
from controlplane.proxy.wire.destination import Destination
from controlplane.proxy.wire.errors import (
    ComputeRefused,
    ComputeUnreachable,
    LetGo,
    LoginUnknown,
    ProjectMoved,
    WakeTimeout,
)

if TYPE_CHECKING:
    from controlplane.proxy.sessions.session import Session


_MIN_RETRY_DELAY = 0.02
_MAX_RETRY_DELAY = 0.5


@dataclass(frozen=True)
class Connecting(Generic[Connection]):
    """Wakes the compute and connects to it by `connect`, as long as the client stays connected. A
    connection that the client may not have after all is closed."""

    client: "Session"
    destination: Destination
    connect: Callable[[ComputeAddress], Awaitable[Connection]]

    async def run(self) -> Connection:
        """Returns the connection. Raises ProxyError."""
        client = self.client
        client.wake = wake = Wake()
        actor = Actor(ActorType.CLIENT, name=client.role, address=client.client_address)
        try:
            with acting_as(actor):
                connection = await self._connect_patiently()
        except BaseException as error:
            wake.failed(error)
            raise
        wake.succeeded()
        return connection

    async def _connect_patiently(self) -> Connection:
        """Waits longer than usual while the endpoint's branch is being made."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            try:
                return await self._wake_and_connect()
            except WakeTimeout:
                waits_for, is_made = await self.client.proxy.directory.waited_for(
                    self.destination.endpoint_id
                )
                waited = loop.time() - began
                if not is_made or waited >= self.client.proxy.settings.branch_timeout:
                    waited = max(self.client.proxy.settings.wake_timeout, round(waited))
                    raise WakeTimeout(waited, waits_for) from None

    async def _wake_and_connect(self) -> Connection:
        refused: ComputeGone | None = None
        refused_address = None
        pause = _MIN_RETRY_DELAY
        client = self.client
        client.is_connecting = True
        client.channel.watch(client.abandon)
        try:
            async with asyncio.timeout(self.client.proxy.settings.wake_timeout):
                while True:
                    client.wake.is_waking = True
                    address = await self._find_compute(refused_address)
                    client.wake.is_waking = False
                    if address is None:
                        await asyncio.sleep(pause)
                        pause = min(pause * 2, _MAX_RETRY_DELAY)
                        continue
                    client.wake.start = address.start or client.wake.start
                    await self._check_address_again()
                    client.must_confirm_again = False
                    if refused_address is not None and refused_address.run != address.run:
                        # The compute was restarted, so the refusal says nothing about this run.
                        pause = _MIN_RETRY_DELAY
                    try:
                        connection = await self._start_session(address)
                        if not client.must_confirm_again:
                            return connection
                        connection.close()
                        raise LoginUnknown
                    except LoginUnknown:
                        refused = ComputeGone("the compute did not confirm the role")
                        refused_address = address
                    except ComputeGone as gone:
                        if gone.final and gone.packet and address == refused_address:
                            raise ComputeRefused(gone.packet) from gone
                        refused, refused_address = gone, address
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, _MAX_RETRY_DELAY)
        except TimeoutError:
            if refused is None:
                raise WakeTimeout(self.client.proxy.settings.wake_timeout) from None
            if refused.packet is not None:
                raise ComputeRefused(refused.packet) from None
            raise ComputeUnreachable from None
        finally:
            client.is_connecting = False
            client.channel.unwatch()

    async def _find_compute(self, refused: ComputeAddress | None) -> ComputeAddress | None:
        """Wakes the compute. Returns its address, or the other host that its project has moved to;
        None if this proxy has not been told of the move yet. Raises ProxyError."""
        try:
            return await self.client.proxy.wakes.wake(
                self.destination.endpoint_id, pooled=self.destination.pooled, refused=refused
            )
        except ProjectMoved:
            if self.client.is_admitted_elsewhere:
                raise LetGo from None
            return await find_elsewhere(self.client, self.destination)

    async def _check_address_again(self) -> None:
        """Checks the client's address again. The rules may have changed after the client was
        admitted, and before changes of its endpoint reached it. Asks the database only if they
        have changed."""
        client, route = self.client, self.client.route
        assert route is not None
        rules = await self.client.proxy.directory.rules(route.endpoint_id, client.role)
        if rules is not None:
            check_address(client, replace(route, rules=rules), client.role)

    async def _start_session(self, address: ComputeAddress) -> Connection:
        """Starts the session, if its role may log in to the compute now.

        Raises PasswordFailed, LoginUnknown, and what `connect` raises.
        """
        client = self.client
        assert client.route is not None
        if address.elsewhere is not None:
            return await self.connect(address)  # the other host confirms the role
        confirm = self.client.proxy.directory.confirm(
            client.route, client.role, address, pooled=self.destination.pooled
        )
        if self.destination.pooled:
            # The pooler may learn of the role only by `confirm`.
            client.identity = await confirm
            return await self.connect(address)
        # Both start a session in the compute. At once, they take only as long as the slower one.
        confirming = asyncio.ensure_future(confirm)
        try:
            connection = await self.connect(address)
        except BaseException as error:
            if not isinstance(error, ComputeRefused):
                confirming.cancel()
            (confirmed,) = await asyncio.gather(confirming, return_exceptions=True)
            # The role is yet to be created in the compute.
            if isinstance(confirmed, LoginUnknown):
                raise confirmed from error
            raise
        with closed_on_failure(connection):
            client.identity = await confirming
        return connection
