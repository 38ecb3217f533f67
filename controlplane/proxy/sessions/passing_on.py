"""The first proxy's side of what is passed on to another host (package `peers`): clients, HTTP
requests and cancel requests. And connections of another host that are no client's: that of its
worker, which moves a project here, goes to this host's worker, and that of its `pg_receivewal` to
the compute whose log it receives."""

import asyncio
import contextlib
import logging
import re
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from controlplane.compute.settings.configuration import PLATFORM_ROLE
from controlplane.logs import current
from controlplane.metrics import figures
from controlplane.proxy.directory.interface import ComputeAddress, Tally
from controlplane.proxy.limits.connection_limits import Admission
from controlplane.proxy.limits.pending_clients import answer_due
from controlplane.proxy.peers.header import Admitted, Kind, PassedOn, SeenTls
from controlplane.proxy.peers.passing import LeadsElsewhere, PassedClient
from controlplane.proxy.relaying.relay import Relay
from controlplane.proxy.settings import mark_of_host, mark_of_key
from controlplane.proxy.wire import messages, startup
from controlplane.proxy.wire.channel import Channel, closed_on_failure
from controlplane.proxy.wire.destination import Destination, endpoint_named_by
from controlplane.proxy.wire.errors import (
    ConnectionLost,
    ControlPlaneUnavailable,
    HostUnreachable,
    ProjectMoved,
    ProtocolViolation,
    TooManyConnections,
)
from controlplane.proxy.wire.startup import CancelKey
from controlplane.proxy.wire.tls import server_name_in

if TYPE_CHECKING:
    from controlplane.proxy.sessions.session import Session

log = logging.getLogger(__name__)

_MAX_HELLO_BYTES = 16_384
# How often to look for the whole ClientHello once its beginning is there, and the seconds between
# two looks. It mostly arrives in one piece.
_MAX_LOOKS, _LOOK_INTERVAL = 20, 0.01
# The only option that the other host needs: see `fleet.receivers.receivewal`.
_OPTIONS = re.compile(rb"(-c wal_sender_timeout=[0-9]{1,8})?")


async def begin_passing_tls_on(client: "Session") -> PassedClient | None:
    """Passes a client's TLS connection on unread, if the host name in its ClientHello names an
    endpoint on another host. That costs this proxy no encryption. The other host admits and counts
    the client, and tells it why it ends.

    Returns None, with the ClientHello still unread, if the host is not known, does not accept the
    connection, or this proxy passes as many on unread as it may.
    """
    if not client.proxy.directory.peers():
        return None
    name = await _server_name(client.channel)
    endpoint_id = endpoint_named_by(name, client.domains)
    host_id = await _host_of(client, endpoint_id) if endpoint_id is not None else None
    if endpoint_id is None or host_id is None:
        return None
    header = _header(client, Kind.TLS, tls=SeenTls(name, b""))
    peer = await client.proxy.peers.connect_for_tls(host_id, header)
    if peer is None:
        return None
    try:
        unproved = Admission.unproved(endpoint_id, client.client_address)
        client.proxy.sessions.count(client, unproved)
    except TooManyConnections:
        peer.close()
        return None
    peer.leave_tls()
    figures.PASSED_ON.labels(Kind.TLS).inc()
    fields = {"client": client.client_address, "endpoint": endpoint_id}
    log.info("passed on", extra={**fields, "host": host_id})
    return PassedClient(client.channel, peer, host_id, client.proxy.readiness)


async def _host_of(client: "Session", endpoint_id: str) -> str | None:
    """Returns the other host of the endpoint; None if it has none or the database does not answer.
    It is the same for every client of the name, and after the same time, whether the name is
    remembered, new or of no endpoint: clients can tell the handshakes of two hosts apart."""
    due = answer_due(client.proxy.readiness.loop, client.proxy.directory.lookup_time())
    host_id = None
    with contextlib.suppress(ControlPlaneUnavailable):
        route = await client.proxy.directory.route_of_any_role(endpoint_id)
        host_id = await client.proxy.peers.leads_to(route, endpoint_id)
    await due
    return host_id


async def _server_name(client: Channel) -> str | None:
    """Returns the host name in the client's ClientHello, and leaves that unread. None if it names
    none, or has not arrived whole soon after its beginning. Raises ConnectionLost."""
    for _ in range(_MAX_LOOKS):
        hello = await client.peek(_MAX_HELLO_BYTES)
        try:
            return server_name_in(hello)
        except ssl.SSLWantReadError:
            await asyncio.sleep(_LOOK_INTERVAL)
    return None


async def begin_passing_on(
    client: "Session",
    found: LeadsElsewhere,
    request: startup.StartupMessage,
) -> PassedClient | None:
    """Passes the client on until the second proxy has admitted it; None if that has refused it.
    Until then the client counts as one that has not authenticated, and from then on in this proxy's
    limits too.

    Raises HostUnreachable, TooManyConnections, ConnectionLost.
    """
    header = _header(client, Kind.POSTGRES, password=found.password)
    client.channel.watch(client.abandon)
    try:
        peer = await client.proxy.peers.connect(found.host_id, header, request.packet)
    finally:
        client.channel.unwatch()
    passed = PassedClient(client.channel, peer, found.host_id, client.proxy.readiness)
    with closed_on_failure(passed):
        is_admitted = await passed.is_admitted()
        if is_admitted:
            client.proxy.sessions.count(client, found.admission)
    if not is_admitted:
        passed.close()
        return None
    kind = Kind.POSTGRES if client.websocket_host is None else "websocket"
    figures.PASSED_ON.labels(kind).inc()
    fields = {"client": client.client_address, "endpoint": found.admission.endpoint_id}
    log.info("passed on", extra={**fields, "host": found.host_id})
    return passed


async def connect_for_requests(client: "Session", host_id: str) -> Channel:
    """Opens a connection for the client's HTTP requests to endpoints of the host. Raises
    HostUnreachable."""
    return await client.proxy.peers.connect(host_id, _header(client, Kind.HTTP))


async def cancel(client: "Session", key: CancelKey) -> None:
    """Cancels the query that runs under the key, on whichever host of the region has issued it. An
    unknown key is ignored, as in Postgres."""
    hosts = client.proxy.peers.issuers_of(key.pid) if client.passed_on is None else []
    if not hosts or mark_of_key(key.pid) == mark_of_host(client.proxy.settings.host_id):
        await client.proxy.cancel(key)
    for host_id in hosts:
        await _pass_on_cancel(client, host_id, key)


async def _pass_on_cancel(client: "Session", host_id: str, key: CancelKey) -> None:
    """Returns once the host has cancelled the query, or cannot be reached."""
    header = _header(client, Kind.CANCEL)
    async with client.proxy.peers.cancelling[host_id]:
        with contextlib.suppress(HostUnreachable, ConnectionLost):
            peer = await client.proxy.peers.connect(
                host_id, header, messages.cancel_request(key.pid, key.secret)
            )
            figures.PASSED_ON.labels(Kind.CANCEL).inc()
            try:
                await peer.read(1)
            finally:
                peer.close()


@dataclass(frozen=True, slots=True)
class ComputeElsewhere:
    """See `interface.OtherHost`: the way of one client that was admitted here."""

    host_id: str
    admitted: Admitted
    client: "Session" = field(compare=False, repr=False)

    async def open(self, *, to_cancel: bool) -> Channel:
        if to_cancel:
            header = _header(self.client, Kind.CANCEL)
        else:
            header = _header(self.client, Kind.POSTGRES, admitted=self.admitted)
            figures.PASSED_ON.labels("moved").inc()
        return await self.client.proxy.peers.connect(self.host_id, header)


async def find_elsewhere(client: "Session", destination: Destination) -> ComputeAddress | None:
    """Returns the address of the client's compute on another host, which its project has moved to;
    None if the host is not known yet. Raises ProjectMoved if the client cannot be served from here,
    WakeFailed."""
    assert client.route is not None
    assert client.route.verifier is not None
    route = await client.proxy.directory.route(destination.endpoint_id, client.role)
    if route is None or route.elsewhere is None:
        return None
    host_id = await client.proxy.peers.leads_to(route, destination.endpoint_id)
    if host_id is None:
        raise ProjectMoved
    admitted = Admitted(destination.endpoint_id, destination.pooled, client.route.verifier)
    return ComputeAddress(Path(), elsewhere=ComputeElsewhere(host_id, admitted, client))


def _header(
    client: "Session",
    kind: Kind,
    *,
    password: bytes | None = None,
    admitted: Admitted | None = None,
    tls: SeenTls | None = None,
) -> PassedOn:
    if client.tls is not None:
        tls = SeenTls(client.tls.server_name, client.tls.channel_binding)
    return PassedOn(
        kind=kind,
        client_address=client.client_address,
        tls=tls,
        domains=client.proxy.settings.domains,
        websocket_host=client.websocket_host,
        password=password,
        admitted=admitted,
        request_id=current("request"),
    )


async def pass_to_worker(client: "Session") -> None:
    """Passes bytes both ways until one side ends. The worker first gets a line with the name of the
    other host, which its certificate has proved."""
    assert client.passed_on is not None
    host = client.passed_on.from_host
    connection = await client.proxy.directory.open_receiver()
    if connection is None:
        return
    log.info("move begun", extra={"host": host})
    await _relay(client, connection, f"{host}\n".encode())


async def send_log(client: "Session") -> None:
    """Passes bytes both ways until one side ends. Raises ProtocolViolation, ConnectionLost."""
    assert client.passed_on is not None
    directory, passed_on = client.proxy.directory, client.passed_on
    request = await startup.read_request(client.channel, client.proxy.identity)
    begin = _begin_log(request, passed_on.receiver)
    fields = {"receiver": passed_on.receiver, "host": passed_on.from_host}
    connection = await directory.open_log_source(passed_on.receiver, passed_on.from_host)
    if connection is None:
        log.warning("no log for this receiver", extra=fields)
        return
    log.info("log sent to another host", extra=fields)
    await _relay(client, connection, begin)
    await directory.end_log_source(passed_on.receiver)


async def _relay(client: "Session", connection: socket.socket, begin: bytes) -> None:
    """Sends `begin` to the connection, then relays until one side ends."""
    channel, readiness = client.channel, client.proxy.readiness
    served = Channel(connection, readiness)
    relay = Relay(channel, served, readiness=readiness, sent=Tally(), received=Tally())
    try:
        relay.start(to_client=b"", to_compute=begin + channel.take_ahead())
        await relay.done
    finally:
        relay.close()


def _begin_log(request: startup.Request | None, receiver: str) -> bytes:
    """Returns the start-up packet for the compute. It is the platform's own connection there, so
    nothing in it is as the other host has sent it. Postgres lets a connection with these parameters
    execute no SQL. Raises ProtocolViolation."""
    given = request.parameters if isinstance(request, startup.StartupMessage) else {}
    options = given.get(b"options", b"")
    if given.get(b"replication") != b"true" or not _OPTIONS.fullmatch(options):
        raise ProtocolViolation("another host has asked for something else than the log")
    return messages.startup_message(
        {
            b"user": PLATFORM_ROLE.encode(),
            b"replication": b"true",
            b"application_name": receiver.encode(),
            b"options": options,
        }
    )
