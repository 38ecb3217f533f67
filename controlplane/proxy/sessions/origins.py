"""Where a client comes from, and what it asks for first. If another program has accepted its
connection, that says where from: a load balancer, or another host's proxy."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from controlplane.logs import add_to_context
from controlplane.proxy.peers.header import Kind
from controlplane.proxy.sessions.context import ProxyContext
from controlplane.proxy.sessions.passing_on import begin_passing_tls_on
from controlplane.proxy.sessions.receiving_moves import pass_to_worker
from controlplane.proxy.sessions.sending_logs import send_log
from controlplane.proxy.wire import startup

if TYPE_CHECKING:
    from controlplane.proxy.sessions.session import Session


async def read_request(
    proxy: ProxyContext, client: "Session", patience: asyncio.Timeout
) -> startup.Request | None:
    """Reads up to the client's start-up message or cancel request. First serves the requests of a
    client that speaks HTTP, for which time limits of their own hold. Returns None if it spoke
    nothing else. Raises ProtocolViolation, ConnectionLost."""
    channel = client.channel
    request: startup.Request | startup.PeerRequest | None = startup.PeerRequest()
    is_http = False
    if await _learn_address(proxy, client):
        is_http = await startup.speaks_http(channel, proxy.identity)
        if not is_http:
            before_tls = partial(_pass_on, proxy, client, patience)
            request = await startup.read_first_request(channel, proxy.identity, before_tls)
    if not is_http:
        if not isinstance(request, startup.PeerRequest):
            return request
        kind = await _accept_from_peer(proxy, client)
        if kind is Kind.MOVE:
            patience.reschedule(None)
            await pass_to_worker(proxy, client)
            return None
        if kind is Kind.LOG:
            patience.reschedule(None)
            await send_log(proxy, client)
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


async def _pass_on(proxy: ProxyContext, client: "Session", patience: asyncio.Timeout) -> bool:
    """Serves a client that is about to begin TLS and whose endpoint is known to be on another host.
    Returns False if this proxy is to perform the handshake."""
    passed = await begin_passing_tls_on(proxy, client)
    if passed is None:
        return False
    patience.reschedule(None)
    await client.relay_to_peer(passed)
    return True


async def _learn_address(proxy: ProxyContext, client: "Session") -> bool:
    """Reads the client's address if a load balancer sends it. Returns False if the connection is of
    another host in the load balancers' networks, whose request has been read. Raises
    ProtocolViolation, ConnectionLost."""
    load_balancers = proxy.settings.load_balancers
    if not load_balancers:
        return True
    address = await startup.client_address(
        client.channel, client.client_address, load_balancers=load_balancers
    )
    if address is not None:
        client.client_address = address
        proxy.sessions.note_address(client)
    return address is not None


async def _accept_from_peer(proxy: ProxyContext, client: "Session") -> Kind:
    """Makes the session one of the client that another host passes on. Returns what the connection
    carries from now on. Raises ProtocolViolation, ConnectionLost."""
    client.passed_on = passed_on = await proxy.peers.accept(client.channel)
    client.client_address = passed_on.client_address
    client.websocket_host = passed_on.websocket_host
    proxy.sessions.note_address(client)
    # One search finds the client's lines in the logs of both hosts.
    add_to_context(request=passed_on.request_id)
    return passed_on.kind
