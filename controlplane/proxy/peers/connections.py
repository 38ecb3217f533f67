"""Connections between the proxies of a region's hosts, in both directions."""

import asyncio
import contextlib
import hmac
import logging
import socket
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from controlplane.proxy.directory.interface import Directory, PeerHost, Route
from controlplane.proxy.peers.header import ACCEPTED, Kind, PassedOn, read_header
from controlplane.proxy.settings import ProxySettings, mark_of_host, mark_of_key
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.channel import Channel, closed_on_failure
from controlplane.proxy.wire.destination import endpoint_named_by
from controlplane.proxy.wire.errors import ConnectionLost, HostUnreachable, ProtocolViolation
from controlplane.proxy.wire.peer_tls import PeerCertificate, PeerTls
from controlplane.proxy.wire.readiness import Readiness
from controlplane.proxy.wire.startup import PEER_REQUEST

log = logging.getLogger(__name__)

# Seconds within which a peer must have accepted a connection, all attempts included.
CONNECT_TIMEOUT = 5.0
# How often to connect to a peer that refuses, and the seconds between two attempts. One of the two
# may have a new certificate; each process of the other's proxy reads it when it has refused it.
_ATTEMPTS, _RETRY_DELAY = 8, 0.2
# Seconds for which a host that did not accept a client's handshake is not asked again for one.
_HANDSHAKE_RETRY_DELAY = 10.0
_MAX_CONCURRENT_CANCELS = 16
# Seconds of silence after which the kernel checks that a peer still exists, seconds between its
# checks, and how many may fail. Sent data that is not acknowledged counts in the same way.
_KEEPALIVE = (10, 5, 3)


class _Refused(Exception):
    """The peer did not accept the connection, or is another one than expected."""


class Peers:
    """The other hosts of the region. `own` is None if clients are neither passed on nor accepted.
    Must be used within one event loop."""

    def __init__(
        self,
        own: PeerCertificate | None,
        settings: ProxySettings,
        directory: Directory,
        readiness: Readiness,
    ) -> None:
        self._tls = PeerTls(own) if own is not None else None
        self._settings = settings
        self._directory = directory
        self._readiness = readiness
        # Anybody can send any number of cancel requests: only so many are passed on at once to each
        # host. One that does not answer delays none for others.
        self.cancelling = defaultdict[str, asyncio.Semaphore](
            partial(asyncio.Semaphore, _MAX_CONCURRENT_CANCELS)
        )
        # See `connect_for_tls`; by host and domain, of which there are few.
        self._ask_again_at: dict[tuple[str, str], float] = {}
        # The hosts that `_tls` trusts.
        self._trusted: Mapping[str, PeerHost] = {}

    async def leads_to(self, route: Route | None, endpoint_id: str) -> str | None:
        """Returns the host that a client of the endpoint is to be passed on to; None if it stays
        here. `route` is None if the endpoint does not exist."""
        if self._tls is None:
            return None
        if route is None:
            return self._host_of_unknown(endpoint_id)
        if route.elsewhere is None:
            return None
        if route.host_id not in self._directory.peers():
            await self._directory.read_peers()
        return route.host_id if route.host_id in self._directory.peers() else None

    def issuers_of(self, pid: int) -> list[str]:
        """Returns the other hosts that may have issued a cancel key with this process id."""
        if self._tls is None:
            return []
        mark = mark_of_key(pid)
        return [host for host in self._directory.peers() if mark_of_host(host) == mark]

    async def connect(
        self, host_id: str, passed_on: PassedOn, first: bytes = b"", *, attempts: int = _ATTEMPTS
    ) -> Channel:
        """Connects to the host's proxy, which has accepted the connection when this returns. Sends
        the header, and then `first`.

        Raises HostUnreachable, also if that takes longer than CONNECT_TIMEOUT seconds.
        """
        sent = passed_on.encoded() + first
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                for _ in range(attempts - 1):
                    known = self._directory.peers().get(host_id)
                    try:
                        return await self._connect(host_id, sent)
                    except (_Refused, OSError) as error:
                        await self._directory.read_peers()
                        # Nothing listens there. It may have another address now.
                        is_gone = isinstance(error, OSError)
                        if is_gone and self._directory.peers().get(host_id) == known:
                            raise
                        await asyncio.sleep(_RETRY_DELAY)
                return await self._connect(host_id, sent)
        except TimeoutError:
            reason = f"no answer within {CONNECT_TIMEOUT:g} s"
            cause: Exception | None = None
        except (_Refused, OSError) as error:
            reason, cause = str(error), error
        log.warning("host unreachable", extra={"host": host_id, "error": reason})
        raise HostUnreachable(host_id) from cause

    async def connect_for_tls(self, host_id: str, passed_on: PassedOn) -> Channel | None:
        """Connects as `connect` does, once, to pass a client's TLS connection on to the host. None
        if the host does not accept it: it may be away, of an earlier release, or not known by the
        name that the client uses. Then it is not asked again soon for names of the same domain."""
        assert passed_on.tls is not None
        name = passed_on.tls.server_name or ""
        asked = host_id, name.rstrip(".").lower().partition(".")[2]
        now = self._readiness.loop.time()
        if now < self._ask_again_at.get(asked, now):
            return None
        try:
            return await self.connect(host_id, passed_on, attempts=1)
        except HostUnreachable:
            self._ask_again_at[asked] = self._readiness.loop.time() + _HANDSHAKE_RETRY_DELAY
            return None

    async def accept(self, channel: Channel) -> PassedOn:
        """Performs the handshake with a peer that has sent its request, and reads its header.

        Raises ProtocolViolation, ConnectionLost.
        """
        if self._tls is None:
            raise ProtocolViolation("this server accepts no connections from other hosts")
        self._trust_known()
        try:
            connection = await channel.start_tls(self._tls.accepting)
        except ConnectionLost as error:
            # A new host, or a new certificate, is accepted at the second attempt.
            log.warning("connection of another host refused", extra={"error": str(error)})
            await self._directory.read_peers()
            raise
        host = self._tls.host_of(connection)
        if host is None:
            raise ConnectionLost("the certificate is of no other host of this region")
        _keep_alive(connection)
        passed_on = await read_header(channel)
        name = passed_on.tls.server_name if passed_on.tls is not None else None
        domains = self._settings.domains
        if passed_on.kind is Kind.TLS and endpoint_named_by(name, domains) is None:
            raise ProtocolViolation("this server is not known by the name that the client uses")
        await channel.write(ACCEPTED)
        return replace(passed_on, from_host=host)

    def _trust_known(self) -> PeerTls:
        assert self._tls is not None
        known = self._directory.peers()
        if known is not self._trusted:
            self._tls.trust({host.id: host.certificate for host in known.values()})
            self._trusted = known
        return self._tls

    async def _connect(self, host_id: str, sent: bytes) -> Channel:
        """Raises _Refused, OSError."""
        tls = self._trust_known()
        peer, context = self._trusted.get(host_id), tls.connecting_to(host_id)
        if peer is None or context is None:
            raise _Refused("the region has no such host, or its certificate cannot be read")
        channel = Channel(await _connected(peer.address, peer.port), self._readiness)
        try:
            with closed_on_failure(channel):
                await channel.write(PEER_REQUEST)
                await channel.start_tls(context, server_side=False)
                await channel.write(sent)
                answer = await channel.read(len(ACCEPTED))
                if answer != ACCEPTED:
                    raise _Refused(await _error_in(channel, answer))
        except ConnectionLost as error:
            raise _Refused(str(error.__cause__ or error) or "it closed the connection") from error
        return channel

    def _host_of_unknown(self, endpoint_id: str) -> str | None:
        """Chooses a host for an endpoint that does not exist: always the same one, and each as
        often as any other. So how long an answer takes does not tell whether the name exists. A new
        host takes over its share of the names, and no other name changes its host."""

        def weight(host_id: str) -> bytes:
            name = f"{host_id} of {endpoint_id}".encode()
            return hmac.digest(self._settings.secret, name, "sha256")

        chosen = max([*self._directory.peers(), self._settings.host_id], key=weight)
        return chosen if chosen != self._settings.host_id else None


async def _error_in(channel: Channel, head: bytes) -> str:
    """Returns the words of the peer's ErrorResponse, of which `head` has been read."""
    size = int.from_bytes(head[1:], "big") - 4
    if head[:1] != b"E" or not 0 <= size <= messages.MAX_ERROR_BYTES:
        return "it answers with something else than a proxy of this version does"
    return messages.error_fields(await channel.read(size)).get("M", "")


async def _connected(host: str, port: int) -> socket.socket:
    """Returns a connection to the first of the host's addresses that accepts one. Raises
    OSError."""
    loop = asyncio.get_running_loop()
    # Not every resolver knows the names below localhost, which all stand for this machine.
    name = "localhost" if host.endswith(".localhost") else host
    failure = OSError(f"{host} has no address")
    for family, _, _, _, address in await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM):
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            with closed_on_failure(connection):
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _keep_alive(connection)
                await loop.sock_connect(connection, address)
                return connection
        except OSError as error:
            failure = error
    raise failure


def _keep_alive(connection: socket.socket) -> None:
    """Lets the connection break soon after the machine at its other end is gone."""
    idle, every, most = _KEEPALIVE
    with contextlib.suppress(AttributeError, OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, every)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, most)
        milliseconds = (idle + every * most) * 1000
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
