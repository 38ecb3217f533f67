"""Connects an admitted client to its compute. It wakes the compute, and then checks once more that
the client may connect: only from the wake on do changes of the endpoint reach the client."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from controlplane.actors import Actor, ActorType, acting_as
from controlplane.proxy.directory.interface import ComputeAddress, Route
from controlplane.proxy.relaying.compute import ComputeGone
from controlplane.proxy.sessions.context import ProxyContext
from controlplane.proxy.sessions.passing_on import ClientToPassOn, find_elsewhere
from controlplane.proxy.sessions.wake_times import Wake
from controlplane.proxy.wire.destination import Destination
from controlplane.proxy.wire.errors import (
    ComputeRefused,
    ComputeUnreachable,
    LetGo,
    LoginUnknown,
    ProjectMoved,
    WakeTimeout,
)

Connection = TypeVar("Connection")
Connect = Callable[[ComputeAddress], Awaitable[Connection]]
Discard = Callable[[Connection], None]

_FIRST_RETRY_PAUSE = 0.02
_LONGEST_RETRY_PAUSE = 0.5


class ConnectingClient(ClientToPassOn, Protocol):
    """See `session.Session`."""

    # True while the client is being connected to its compute; true if its role was replaced by
    # another of the same name in that time.
    is_connecting: bool
    must_confirm_again: bool
    # The client's last way to its compute.
    wake: Wake

    @property
    def is_admitted_elsewhere(self) -> bool:
        """True if another host's proxy has admitted the client, and connects it again if it is let
        go."""
        ...

    def check_address(self, route: Route | None, role: str) -> None: ...


async def connect_to_compute(
    proxy: ProxyContext,
    client: ConnectingClient,
    destination: Destination,
    connect: Connect[Connection],
    discard: Discard[Connection],
) -> Connection:
    """Wakes the compute and connects to it by `connect`, as long as the client stays connected. A
    connection that the client may not have after all is passed to `discard`.

    Raises ProxyError.
    """
    client.wake = wake = Wake()
    actor = Actor(ActorType.CLIENT, name=client.role, address=client.client_address)
    try:
        with acting_as(actor):
            connection = await _connect_patiently(proxy, client, destination, connect, discard)
    except BaseException as error:
        wake.failed(error)
        raise
    wake.succeeded()
    return connection


async def _connect_patiently(
    proxy: ProxyContext,
    client: ConnectingClient,
    destination: Destination,
    connect: Connect[Connection],
    discard: Discard[Connection],
) -> Connection:
    """Waits longer than usual while the endpoint's branch is being made."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        try:
            return await _connect_to_compute(proxy, client, destination, connect, discard)
        except WakeTimeout:
            waits_for, is_made = await proxy.directory.waited_for(destination.endpoint_id)
            waited = loop.time() - began
            if not is_made or waited >= proxy.settings.branch_timeout:
                waited = max(proxy.settings.wake_timeout, round(waited))
                raise WakeTimeout(waited, waits_for) from None


async def _connect_to_compute(
    proxy: ProxyContext,
    client: ConnectingClient,
    destination: Destination,
    connect: Connect[Connection],
    discard: Discard[Connection],
) -> Connection:
    refused: ComputeGone | None = None
    refused_address = None
    pause = _FIRST_RETRY_PAUSE
    client.is_connecting = True
    client.channel.watch(client.abandon)
    try:
        async with asyncio.timeout(proxy.settings.wake_timeout):
            while True:
                client.wake.is_waking = True
                address = await _find_compute(proxy, client, destination, refused_address)
                client.wake.is_waking = False
                if address is None:
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, _LONGEST_RETRY_PAUSE)
                    continue
                client.wake.start = address.start or client.wake.start
                await _check_address_again(proxy, client)
                client.must_confirm_again = False
                if refused_address is not None and refused_address.run != address.run:
                    # The compute was restarted, so the refusal says nothing about this run.
                    pause = _FIRST_RETRY_PAUSE
                try:
                    connection = await _start_session(
                        proxy, client, address, destination, connect, discard
                    )
                    if not client.must_confirm_again:
                        return connection
                    discard(connection)
                    raise LoginUnknown
                except LoginUnknown:
                    refused, refused_address = (
                        ComputeGone("the compute did not confirm the role"),
                        address,
                    )
                except ComputeGone as gone:
                    if gone.final and gone.packet and address == refused_address:
                        raise ComputeRefused(gone.packet) from gone
                    refused, refused_address = gone, address
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_RETRY_PAUSE)
    except TimeoutError:
        if refused is None:
            raise WakeTimeout(proxy.settings.wake_timeout) from None
        if refused.packet is not None:
            raise ComputeRefused(refused.packet) from None
        raise ComputeUnreachable from None
    finally:
        client.is_connecting = False
        client.channel.unwatch()


async def _find_compute(
    proxy: ProxyContext,
    client: ConnectingClient,
    destination: Destination,
    refused: ComputeAddress | None,
) -> ComputeAddress | None:
    """Wakes the compute. Returns its address, or the other host that its project has moved to; None
    if this proxy has not been told of the move yet. Raises ProxyError."""
    try:
        return await proxy.wakes.wake(
            destination.endpoint_id, pooled=destination.pooled, refused=refused
        )
    except ProjectMoved:
        if client.is_admitted_elsewhere:
            raise LetGo from None
        return await find_elsewhere(proxy, client, destination)


async def _check_address_again(proxy: ProxyContext, client: ConnectingClient) -> None:
    """Checks the client's address again. The rules may have changed after the client was admitted,
    and before changes of its endpoint reached it. Asks the database only if they have
    changed."""
    route = client.route
    assert route is not None
    rules = await proxy.directory.rules(route.endpoint_id, client.role)
    if rules is not None:
        client.check_address(replace(route, rules=rules), client.role)


async def _start_session(
    proxy: ProxyContext,
    client: ConnectingClient,
    address: ComputeAddress,
    destination: Destination,
    connect: Connect[Connection],
    discard: Discard[Connection],
) -> Connection:
    """Starts the session, if its role may log in to the compute now.

    Raises PasswordFailed, LoginUnknown, and what `connect` raises.
    """
    assert client.route is not None
    if address.elsewhere is not None:
        return await connect(address)  # the other host confirms the role
    confirm = proxy.directory.confirm(client.route, client.role, address, pooled=destination.pooled)
    if destination.pooled:
        # The pooler may learn of the role only by `confirm`.
        client.identity = await confirm
        return await connect(address)
    # Both start a session in the compute. At once, they take only as long as the slower one.
    confirming = asyncio.ensure_future(confirm)
    try:
        connection = await connect(address)
    except BaseException:
        confirming.cancel()
        await asyncio.gather(confirming, return_exceptions=True)
        raise
    try:
        client.identity = await confirming
    except BaseException:
        discard(connection)
        raise
    return connection
