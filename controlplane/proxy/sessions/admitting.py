"""Admits a client: finds the endpoint that it wants, checks its address, and authenticates it."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

from controlplane.address_ranges import is_loopback
from controlplane.proxy.authentication import scram
from controlplane.proxy.authentication.sasl import ask_for_password, authenticate
from controlplane.proxy.directory.interface import Route
from controlplane.proxy.limits.connection_limits import Admission
from controlplane.proxy.limits.pacing import answer_due
from controlplane.proxy.limits.pending_clients import origin_of
from controlplane.proxy.sessions.connected_sessions import Connected
from controlplane.proxy.sessions.context import ProxyContext
from controlplane.proxy.settings import PlainConnections
from controlplane.proxy.wire import startup
from controlplane.proxy.wire.channel import Channel
from controlplane.proxy.wire.destination import (
    Destination,
    find_destination,
    find_in_password,
    for_the_pooler,
)
from controlplane.proxy.wire.errors import (
    DisabledEndpointRefused,
    EndpointElsewhere,
    ForeignServerName,
    InsecureConnection,
    MissingEndpoint,
    PasswordFailed,
    ProxyError,
)

Proof = TypeVar("Proof")


class ClientToAdmit(Connected, Protocol):
    """See `session.Session`."""

    route: Route | None
    # Set once the connection is a WebSocket: the host that the client wants to reach.
    websocket_host: str | None

    @property
    def channel(self) -> Channel: ...


async def admit_postgres(
    proxy: ProxyContext, client: ClientToAdmit, request: startup.StartupMessage
) -> tuple[Destination, bytes]:
    """Admits a client that speaks the Postgres protocol. Returns the destination, and the
    AuthenticationSASLFinal that is still to be sent, or b"". Raises ProxyError."""
    _refuse_plain(proxy, client)
    destination, password = await _find_destination(proxy, client, request)
    prove = partial(_authenticate, proxy, client, request, destination.endpoint_id, password)
    return await admit(proxy, client, destination, request.role, prove, equalizes_timing=True)


async def admit(
    proxy: ProxyContext,
    client: ClientToAdmit,
    destination: Destination,
    role: str,
    prove: Callable[[scram.Verifier], Awaitable[Proof]],
    *,
    equalizes_timing: bool = False,
) -> tuple[Destination, Proof]:
    """Admits the client if `prove` shows that it is the role. An unknown endpoint or role gets the
    same error as a wrong password, after the same time.

    `prove` raises PasswordFailed; what it returns is returned here. `equalizes_timing` must be set
    if `prove` sends the client anything before the client has proved its identity. Raises
    ProxyError.
    """
    _refuse_plain(proxy, client)
    async with proxy.logins.share((origin_of(client.client_address), destination.endpoint_id)):
        return await _admit(
            proxy, client, destination, role, prove, equalizes_timing=equalizes_timing
        )


def check_address(
    proxy: ProxyContext, client: ClientToAdmit, route: Route | None, role: str
) -> None:
    """Raises AddressNotAllowed, PublicAddressRefused."""
    if route is None or route.rules is None:
        return
    address = client.client_address
    try:
        route.rules.check(address)
    except ProxyError:
        proxy.directory.note_refusal(route, role, address=address, is_outside=True)
        raise


async def _admit(
    proxy: ProxyContext,
    client: ClientToAdmit,
    destination: Destination,
    role: str,
    prove: Callable[[scram.Verifier], Awaitable[Proof]],
    *,
    equalizes_timing: bool,
) -> tuple[Destination, Proof]:
    tls = client.channel.tls
    due = answer_due(proxy.readiness.loop, proxy.directory.lookup_time())
    route = await proxy.directory.route(destination.endpoint_id, role)
    check_address(proxy, client, route, role)
    verifier = scram.parse_verifier(route.verifier) if route and route.verifier else None
    if verifier is None:
        name = f"{destination.endpoint_id}/{role}"
        verifier = scram.mock_verifier(name, proxy.settings.secret)
    if equalizes_timing:
        await due
    try:
        proof = await prove(verifier)
    except PasswordFailed:
        proxy.directory.note_refusal(route, role, address=client.client_address)
        await due
        await asyncio.sleep(proxy.failure_pace.pause(client.client_address))
        raise
    assert route is not None
    if tls is not None:
        proxy.identity.note_authenticated(tls.server_name)
    if route.elsewhere is not None:
        raise EndpointElsewhere(route.elsewhere)
    if route.disabled:
        raise DisabledEndpointRefused
    admission = Admission(
        route.account_id,
        destination.endpoint_id,
        role,
        account_connections=route.account_connections,
    )
    destination = for_the_pooler(destination.with_pooler(route.always_pooled))
    client.role, client.identity, client.route = role, route.identity, route
    proxy.sessions.admit(client, admission)
    return destination, proof


async def _find_destination(
    proxy: ProxyContext, client: ClientToAdmit, request: startup.StartupMessage
) -> tuple[Destination, bytes | None]:
    """Returns the destination. If only the password can name the endpoint, asks the client for it
    in clear text and returns it as well; otherwise None."""
    try:
        destination = find_destination(
            request.parameters,
            server_name=_server_name(client),
            domains=proxy.settings.domains,
        )
    except (MissingEndpoint, ForeignServerName):
        password = await ask_for_password(client.channel, preamble=request.negotiation)
        found = find_in_password(password, request.parameters)
        if found is None:
            raise
        return found
    return destination, None


def _server_name(client: ClientToAdmit) -> str | None:
    if client.websocket_host is not None:
        return client.websocket_host
    return client.channel.tls.server_name if client.channel.tls is not None else None


async def _authenticate(
    proxy: ProxyContext,
    client: ClientToAdmit,
    request: startup.StartupMessage,
    endpoint_id: str,
    password: bytes | None,
    verifier: scram.Verifier,
) -> bytes:
    """Authenticates the client; returns the AuthenticationSASLFinal, or b"" for a clear-text
    password. Raises PasswordFailed, ProtocolViolation, ConnectionLost."""
    if password is None and client.websocket_host is not None:
        # A browser's program cannot see the certificate of its TLS connection, so there is nothing
        # for SCRAM to bind to, and drivers send the password without being asked.
        password = await ask_for_password(client.channel, preamble=request.negotiation)
    if password is not None:
        await proxy.passwords.check(
            verifier,
            password,
            role=request.role,
            endpoint_id=endpoint_id,
            address=client.client_address,
        )
        return b""
    tls = client.channel.tls
    return await authenticate(
        client.channel,
        verifier,
        role=request.role,
        channel_binding=tls.channel_binding if tls is not None else None,
        preamble=request.negotiation,
    )


def _refuse_plain(proxy: ProxyContext, client: ClientToAdmit) -> None:
    """Raises InsecureConnection if the client may not connect without TLS, but does."""
    if client.channel.tls is None and not _may_be_plain(proxy, client):
        raise InsecureConnection


def _may_be_plain(proxy: ProxyContext, client: ClientToAdmit) -> bool:
    allowed = proxy.settings.plain_connections
    if allowed is PlainConnections.LOOPBACK:
        return is_loopback(client.client_address)
    return allowed is PlainConnections.ALWAYS
