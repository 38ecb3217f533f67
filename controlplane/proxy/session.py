"""One client's connection from its first byte to its last: start-up, password, wake, relay."""

import asyncio
import ipaddress
import logging
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from controlplane.actors import Actor, ActorType, acting_as
from controlplane.logs import context
from controlplane.proxy import compute, messages, scram, startup
from controlplane.proxy.authentication import authenticate
from controlplane.proxy.channel import Channel
from controlplane.proxy.compute import CancelKey, ComputeConnection, ComputeGone
from controlplane.proxy.directory import Directory
from controlplane.proxy.errors import (
    ComputeRefused,
    ComputeUnreachable,
    ConnectionLost,
    DisabledEndpointRefused,
    InsecureConnection,
    PasswordFailed,
    ProtocolViolation,
    ProxyError,
    WakeTimeout,
)
from controlplane.proxy.limits import Admission
from controlplane.proxy.pacing import FailurePace
from controlplane.proxy.readiness import Readiness
from controlplane.proxy.registry import Registry
from controlplane.proxy.relay import Relay
from controlplane.proxy.routing import Destination, find_destination
from controlplane.proxy.settings import PlainConnections, ProxySettings
from controlplane.proxy.shared_wakes import SharedWakes
from controlplane.proxy.tls import ALPN_PROTOCOL, TlsIdentity

log = logging.getLogger(__name__)

_FIRST_RETRY_PAUSE = 0.02
_LONGEST_RETRY_PAUSE = 0.5
# How long a refused client is given to read why, in seconds.
_LAST_WORDS_PATIENCE = 2.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all sessions of a proxy share."""

    settings: ProxySettings
    identity: TlsIdentity
    readiness: Readiness
    registry: Registry
    directory: Directory
    wakes: SharedWakes
    failure_pace: FailurePace
    # Cancels what runs under the key, here or at a peer.
    cancel: Callable[[CancelKey], Awaitable[None]]


class Session:
    def __init__(
        self, proxy: Surroundings, connection: socket.socket, *, client_address: str
    ) -> None:
        self._proxy = proxy
        self._client = Channel(connection, proxy.readiness)
        self._client_address = client_address
        # Known once the client has shown its password.
        self.admission: Admission | None = None
        # Known once it is joined to its compute.
        self.key: CancelKey | None = None
        self._compute: ComputeConnection | None = None
        self._relay: Relay | None = None
        self._interruption: ProxyError | None = None
        # The task copies the context, and with it what every line about this client is
        # followed by, also in the operations that it has scheduled.
        with context(request=f"c-{secrets.token_hex(6)}"):
            self.task = proxy.readiness.loop.create_task(self._run())
        # Not at the end of `_run`: a task cancelled before its first step never gets there.
        self.task.add_done_callback(self._clean_up)

    def abandon(self) -> None:
        """Closes the connection without a word."""
        self.task.cancel()

    def interrupt(self, error: ProxyError) -> None:
        """Ends the connection, telling the client why if it can still be told."""
        if self._relay is not None:
            self._relay.interrupt(error.packet())
        else:
            self._interruption = error
            self.task.cancel()

    async def cancel_query(self) -> None:
        if self._compute is not None:
            await compute.cancel(
                self._compute.address, self._compute.cancel_key, readiness=self._proxy.readiness
            )

    async def _run(self) -> None:
        try:
            await self._serve()
        except ProxyError as error:
            await self._refuse(error)
        except ConnectionLost as error:
            log.debug(
                "connection lost", extra={"client": self._client_address, "error": str(error)}
            )
        except TimeoutError:
            log.info("start-up timed out", extra={"client": self._client_address})
        except asyncio.CancelledError:
            if self._interruption is None:
                raise
            await self._refuse(self._interruption)
        except Exception:
            log.exception("session failed", extra={"client": self._client_address})
            await self._refuse(ProxyError("internal error"))

    def _clean_up(self, _: "asyncio.Task[None]") -> None:
        self._client.close()
        self._proxy.registry.remove(self)

    async def _serve(self) -> None:
        async with asyncio.timeout(self._proxy.settings.startup_timeout):
            request = await self._read_request()
            if isinstance(request, startup.CancelRequest):
                await self._proxy.cancel(CancelKey(request.pid, request.secret))
                await self._client.finish(b"", patience=_LAST_WORDS_PATIENCE)
                return
            destination, sasl_final = await self._admit(request)
        admitted = time.monotonic()
        with acting_as(Actor(ActorType.CLIENT, name=request.role, address=self._client_address)):
            connection = await self._reach_compute(destination)
        fields = {
            "client": self._client_address,
            "endpoint": destination.endpoint_id,
            "role": request.role,
            "pooled": destination.pooled,
            "ms": round((time.monotonic() - admitted) * 1000, 1),
        }
        log.info("connected", extra=fields)
        self._compute = connection
        self.key = self._proxy.registry.issue_key(
            self, long=request.protocol >= messages.PROTOCOL_3_2
        )
        self._relay = Relay(self._client, connection.channel, readiness=self._proxy.readiness)
        try:
            self._relay.start(
                to_client=sasl_final + connection.greeting(self.key),
                to_compute=self._client.take_ahead(),
            )
            await self._relay.done
        finally:
            self._relay.close()

    async def _read_request(self) -> startup.CancelRequest | startup.StartupMessage:
        """Reads up to the start-up message or cancel request, agreeing on TLS on the way."""
        if await self._client.peek() == startup.TLS_HANDSHAKE_BYTE:
            tls = await self._client.start_tls(self._proxy.identity.context)
            if tls.selected_alpn_protocol() != ALPN_PROTOCOL:
                raise ProtocolViolation(
                    "received direct SSL connection request without ALPN protocol "
                    "negotiation extension"
                )
        gss_refused = False
        while True:
            head = await self._client.read(startup.HEAD_SIZE)
            rest = await self._client.read(startup.packet_size(head) - startup.HEAD_SIZE)
            packet = startup.parse(head + rest)
            if not isinstance(packet, startup.EncryptionRequest):
                return packet
            if self._client.tls is not None or (gss_refused and not packet.tls):
                raise ProtocolViolation("received unexpected encryption request")
            if packet.tls:
                await self._client.write(b"S")
                await self._client.start_tls(self._proxy.identity.context)
            else:
                gss_refused = True
                await self._client.write(b"N")

    async def _admit(self, request: startup.StartupMessage) -> tuple[Destination, bytes]:
        """Finds the endpoint and checks the password: both or the same refusal."""
        proxy = self._proxy
        tls = self._client.tls
        if tls is None and not self._may_be_plain():
            raise InsecureConnection
        destination = find_destination(
            request.parameters,
            server_name=tls.server_name if tls is not None else None,
            region_host=proxy.settings.region_host,
        )
        route = await proxy.directory.route(destination.endpoint_id, request.role)
        verifier = scram.parse_verifier(route.verifier) if route and route.verifier else None
        if verifier is None:
            name = f"{destination.endpoint_id}/{request.role}"
            verifier = scram.mock_verifier(name, proxy.settings.secret)
        try:
            sasl_final = await authenticate(
                self._client,
                verifier,
                role=request.role,
                channel_binding=tls.channel_binding if tls is not None else None,
                preamble=request.negotiation,
            )
        except PasswordFailed:
            proxy.directory.note_refusal(route, request.role, address=self._client_address)
            await asyncio.sleep(proxy.failure_pace.pause(self._client_address))
            raise
        assert route is not None
        if tls is not None:
            proxy.identity.note_proven(tls.server_name)
        if route.disabled:
            raise DisabledEndpointRefused
        admission = Admission(
            route.account_id,
            destination.endpoint_id,
            request.role,
            account_connections=route.account_connections,
        )
        proxy.registry.admit(self, admission)
        return destination.with_pooler(route.always_pooled), sasl_final

    async def _reach_compute(self, destination: Destination) -> ComputeConnection:
        """Wakes the compute and starts a session there, while the client stays."""
        refused: ComputeGone | None = None
        refused_address = None
        pause = _FIRST_RETRY_PAUSE
        self._client.watch(self.abandon)
        try:
            async with asyncio.timeout(self._proxy.settings.wake_timeout):
                while True:
                    address = await self._proxy.wakes.wake(
                        destination.endpoint_id,
                        pooled=destination.pooled,
                        refused=refused_address,
                    )
                    try:
                        return await compute.connect(
                            address, destination.parameters, readiness=self._proxy.readiness
                        )
                    except ComputeGone as gone:
                        if gone.final and gone.packet and address == refused_address:
                            raise ComputeRefused(gone.packet) from gone
                        refused, refused_address = gone, address
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, _LONGEST_RETRY_PAUSE)
        except TimeoutError:
            if refused is None:
                raise WakeTimeout(self._proxy.settings.wake_timeout) from None
            if refused.packet is not None:
                raise ComputeRefused(refused.packet) from None
            raise ComputeUnreachable from None
        finally:
            self._client.unwatch()

    def _may_be_plain(self) -> bool:
        allowed = self._proxy.settings.plain_connections
        if allowed is PlainConnections.LOOPBACK:
            return ipaddress.ip_address(self._client_address).is_loopback
        return allowed is PlainConnections.ALWAYS

    async def _refuse(self, error: ProxyError) -> None:
        fields = {
            "client": self._client_address,
            "endpoint": self.admission.endpoint_id if self.admission else None,
            "sqlstate": error.sqlstate,
            "error": str(error),
        }
        log.info("connection refused", extra=fields)
        await self._client.finish(error.packet(), patience=_LAST_WORDS_PATIENCE)
