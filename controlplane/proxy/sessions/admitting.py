"""Admits a client: learns where it comes from and what it asks for first, finds the endpoint that
it wants, checks its address, and authenticates it. If another program has accepted its connection,
that says where from: a load balancer, or another host's proxy."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from controlplane.address_ranges import is_loopback
from controlplane.logs import add_to_context
from controlplane.proxy.authentication import scram
from controlplane.proxy.authentication.scram import ask_for_password, authenticate
from controlplane.proxy.directory.interface import Route
from controlplane.proxy.limits.connection_limits import NO_ACCOUNT, Admission
from controlplane.proxy.limits.pending_clients import answer_due
from controlplane.proxy.peers.header import Admitted, Kind
from controlplane.proxy.peers.passing import LeadsElsewhere
from controlplane.proxy.sessions.passing_on import begin_passing_tls_on, pass_to_worker, send_log
from controlplane.proxy.settings import PlainConnections
from controlplane.proxy.wire import startup
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
    LetGo,
    MissingEndpoint,
    PasswordFailed,
    ProxyError,
)

if TYPE_CHECKING:
    from controlplane.proxy.sessions.session import Session

Proof = TypeVar("Proof")


async def read_request(client: "Session", patience: asyncio.Timeout) -> startup.Request | None:
    """Reads up to the client's start-up message or cancel request. First serves the requests of a
    client that speaks HTTP, for which time limits of their own hold. Returns None if it spoke
    nothing else. Raises ProtocolViolation, ConnectionLost."""
    channel, proxy = client.channel, client.proxy
    request: startup.Request | startup.PeerRequest | None = startup.PeerRequest()
    is_http = False
    if await _learn_address(client):
        is_http = await startup.speaks_http(channel, proxy.identity)
        if not is_http:
            before_tls = partial(_pass_on, client, patience)
            request = await startup.read_first_request(channel, proxy.identity, before_tls)
    if not is_http:
        if not isinstance(request, startup.PeerRequest):
            return request
        kind = await _accept_from_peer(client)
        if kind in (Kind.MOVE, Kind.LOG):
            proxy.sessions.note_proved(client)
            patience.reschedule(None)
            await (pass_to_worker if kind is Kind.MOVE else send_log)(client)
            return None
        if kind is Kind.TLS:
            client.passed_on = None  # it begins TLS with this proxy, as it would without the other
            channel.leave_tls()
            await channel.start_tls(proxy.identity.context)
        is_http = kind is Kind.HTTP
    if is_http:
        patience.reschedule(None)
        if not await client.serve_http():
            return None
        patience.reschedule(proxy.readiness.loop.time() + proxy.settings.startup_timeout)
    return await startup.read_request(channel, proxy.identity)


async def _pass_on(client: "Session", patience: asyncio.Timeout) -> bool:
    """Serves a client that is about to begin TLS and whose endpoint is known to be on another host.
    Returns False if this proxy is to perform the handshake."""
    passed = await begin_passing_tls_on(client)
    if passed is None:
        return False
    patience.reschedule(None)
    await client.relay_to_peer(passed)
    return True


async def _learn_address(client: "Session") -> bool:
    """Reads the client's address if a load balancer sends it. Returns False if the connection is of
    another host in the load balancers' networks, whose request has been read. Raises
    ProtocolViolation, ConnectionLost."""
    load_balancers = client.proxy.settings.load_balancers
    if not load_balancers:
        return True
    address = await startup.client_address(
        client.channel, client.client_address, load_balancers=load_balancers
    )
    if address is not None:
        client.client_address = address
        client.proxy.sessions.note_address(client)
    return address is not None


async def _accept_from_peer(client: "Session") -> Kind:
    """Makes the session one of the client that another host passes on. Returns what the connection
    carries from now on. Raises ProtocolViolation, ConnectionLost."""
    client.passed_on = passed_on = await client.proxy.peers.accept(client.channel)
    client.client_address = passed_on.client_address
    client.websocket_host = passed_on.websocket_host
    client.proxy.sessions.note_address(client)
    # One search finds the client's lines in the logs of both hosts.
    add_to_context(request=passed_on.request_id)
    return passed_on.kind


async def admit_postgres(
    client: "Session", request: startup.StartupMessage
) -> tuple[Destination, bytes]:
    """Admits a client that speaks the Postgres protocol. Returns the destination, and the
    AuthenticationSASLFinal that is still to be sent, or b"". Raises ProxyError, and LeadsElsewhere
    if the client must be passed on."""
    _refuse_plain(client)
    if client.passed_on is not None and client.passed_on.admitted is not None:
        return await _admit_again(client, request, client.passed_on.admitted), b""
    destination, password, answer = await _find_destination(client, request)
    prove = partial(_authenticate, client, request, destination.endpoint_id, password)
    try:
        return await admit(client, destination, request.role, prove, equalizes_timing=True)
    except LeadsElsewhere as found:
        found.password = answer
        raise


async def admit(
    client: "Session",
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
    ProxyError, and LeadsElsewhere before `prove` is called.
    """
    proxy = client.proxy
    _refuse_plain(client)
    due = answer_due(proxy.readiness.loop, proxy.directory.lookup_time())
    route = await proxy.directory.route(destination.endpoint_id, role)
    check_address(client, route, role)
    if client.passed_on is None:
        host_id = await proxy.peers.leads_to(route, destination.endpoint_id)
        if host_id is not None:
            if equalizes_timing:
                await due
            raise LeadsElsewhere(host_id, _admission(route, destination.endpoint_id, role))
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
    client.note_authenticated()
    if route.elsewhere is not None and not await proxy.peers.leads_to(route, route.endpoint_id):
        raise EndpointElsewhere(route.elsewhere)
    destination = for_the_pooler(destination.with_pooler(route.always_pooled))
    _let_in(client, route, role)
    return destination, proof


def readmit(
    client: "Session",
    destination: Destination,
    role: str,
    knows: Callable[[scram.Verifier], bool],
) -> tuple[Destination, scram.Verifier] | None:
    """Admits the client as `admit` does, but asks nobody. Returns None, and has then done nothing,
    unless the role was confirmed just now and `knows` says that the password fits its verifier.
    Raises ProxyError."""
    recent = client.proxy.directory.recent(destination.endpoint_id, role)
    verifier = scram.parse_verifier(recent[0].verifier or "") if recent else None
    if recent is None or verifier is None or not knows(verifier):
        return None
    route, _ = recent
    _refuse_plain(client)
    check_address(client, route, role)
    client.note_authenticated()
    destination = for_the_pooler(destination.with_pooler(route.always_pooled))
    _let_in(client, route, role)
    return destination, verifier


def check_address(client: "Session", route: Route | None, role: str) -> None:
    """Raises AddressNotAllowed, PublicAddressRefused."""
    if route is None or route.rules is None:
        return
    address = client.client_address
    try:
        route.rules.check(address)
    except ProxyError:
        client.proxy.directory.note_refusal(route, role, address=address, is_outside=True)
        raise


async def _admit_again(
    client: "Session", request: startup.StartupMessage, admitted: Admitted
) -> Destination:
    """Admits a client that another host has admitted, and that has sent its password there. The
    compute is asked whether that is still valid (`Directory.confirm`). Raises ProxyError."""
    route = await client.proxy.directory.route(admitted.endpoint_id, request.role)
    check_address(client, route, request.role)
    if route is None:
        raise PasswordFailed(request.role)
    if route.elsewhere is not None:
        raise LetGo
    route = replace(route, verifier=admitted.verifier, confirmed_by=None)
    _let_in(client, route, request.role)
    return Destination(admitted.endpoint_id, admitted.pooled, request.parameters)


def _let_in(client: "Session", route: Route, role: str) -> None:
    """Raises DisabledEndpointRefused, TooManyConnections."""
    if route.disabled:
        raise DisabledEndpointRefused
    client.role, client.identity, client.route = role, route.identity, route
    client.proxy.sessions.admit(client, _admission(route, route.endpoint_id, role))


def _admission(route: Route | None, endpoint_id: str, role: str) -> Admission:
    if route is None:
        return Admission(NO_ACCOUNT, endpoint_id, role)
    return Admission(
        route.account_id, endpoint_id, role, account_connections=route.account_connections
    )


async def _find_destination(
    client: "Session", request: startup.StartupMessage
) -> tuple[Destination, bytes | None, bytes | None]:
    """Returns the destination. If only the password can name the endpoint, asks the client for it
    in clear text, and returns as well the password without the name, and the client's whole answer;
    otherwise None."""
    try:
        destination = find_destination(
            request.parameters, server_name=_server_name(client), domains=client.domains
        )
    except (MissingEndpoint, ForeignServerName):
        answer = client.passed_on.password if client.passed_on else None
        if answer is None:
            answer = await ask_for_password(client.channel, preamble=request.negotiation)
        found = find_in_password(answer, request.parameters)
        if found is None:
            raise
        return *found, answer
    return destination, None, None


def _server_name(client: "Session") -> str | None:
    if client.websocket_host is not None:
        return client.websocket_host
    return client.tls.server_name if client.tls is not None else None


async def _authenticate(
    client: "Session",
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
        await client.proxy.passwords.check(
            verifier,
            password,
            role=request.role,
            endpoint_id=endpoint_id,
            address=client.client_address,
        )
        return b""
    tls = client.tls
    return await authenticate(
        client.channel,
        verifier,
        role=request.role,
        channel_binding=tls.channel_binding if tls is not None else None,
        preamble=request.negotiation,
    )


def _refuse_plain(client: "Session") -> None:
    """Raises InsecureConnection if the client may not connect without TLS, but does."""
    allowed = client.proxy.settings.plain_connections
    if client.tls is not None or allowed is PlainConnections.ALWAYS:
        return
    if allowed is PlainConnections.NEVER or not is_loopback(client.client_address):
        raise InsecureConnection
