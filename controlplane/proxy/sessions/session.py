"""One client's connection from its first byte to its last: start-up, password, wake, relay. A
connection may speak HTTP instead; its requests are admitted and reach computes in the same ways."""

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from controlplane.address_ranges import is_loopback
from controlplane.logs import context
from controlplane.metrics import figures
from controlplane.proxy.authentication import scram
from controlplane.proxy.authentication.sasl import ask_for_password, authenticate
from controlplane.proxy.directory.interface import ComputeAddress, RoleIdentity, Route
from controlplane.proxy.directory.traffic import Tally
from controlplane.proxy.limits.connection_limits import Admission
from controlplane.proxy.limits.pacing import answer_due
from controlplane.proxy.limits.pending_clients import origin_of
from controlplane.proxy.over_http import websocket
from controlplane.proxy.over_http.connection import HttpConnection
from controlplane.proxy.pooling.pooled_client import PooledClient
from controlplane.proxy.pooling.pooled_relay import PooledRelay
from controlplane.proxy.relaying import compute
from controlplane.proxy.relaying.compute import CancelKey, ComputeConnection
from controlplane.proxy.relaying.direct import DirectClient
from controlplane.proxy.relaying.first_answer import FirstAnswer
from controlplane.proxy.relaying.first_exchange import FirstExchange
from controlplane.proxy.sessions.connecting import connect_to_compute
from controlplane.proxy.sessions.context import ProxyContext
from controlplane.proxy.sessions.wake_times import LoginTimes, Wake
from controlplane.proxy.settings import PlainConnections
from controlplane.proxy.wire import messages, proxy_protocol, startup
from controlplane.proxy.wire.accepting import waited_for_accept
from controlplane.proxy.wire.channel import Channel
from controlplane.proxy.wire.destination import (
    Destination,
    find_destination,
    find_in_password,
    for_the_pooler,
)
from controlplane.proxy.wire.errors import (
    ConnectionLost,
    DisabledEndpointRefused,
    ForeignServerName,
    InsecureConnection,
    LoginEnded,
    MissingEndpoint,
    PasswordFailed,
    ProxyError,
)

log = logging.getLogger(__name__)

Proof = TypeVar("Proof")
Connection = TypeVar("Connection")

# How many seconds a refused client is given to read the error.
_FINAL_MESSAGE_TIMEOUT = 2.0


class Session:
    def __init__(
        self, proxy: ProxyContext, connection: socket.socket, *, client_address: str
    ) -> None:
        self._proxy = proxy
        self.channel = Channel(connection, proxy.readiness)
        self.client_address = client_address
        # Set once the client has authenticated.
        self.admission: Admission | None = None
        # Set once the client is joined to its compute.
        self.key: CancelKey | None = None
        # The client's role, and the route by which it was admitted; set with the admission.
        self.role = ""
        self.identity = RoleIdentity()
        self.route: Route | None = None
        # True while the client is being connected to its compute; true if its role was replaced by
        # another of the same name in that time.
        self.is_connecting = self.must_confirm_again = False
        # The times of its login, until its first request has been answered; of its last way to its
        # compute.
        self._login: LoginTimes | None = LoginTimes(waited_for_accept(connection))
        self.wake = Wake()
        # See `interface.Client`. `_must_park` is true if the pooler that the client has reached, or
        # is about to reach, is to stop.
        self.is_parked = self._must_park = False
        self._compute: ComputeConnection | None = None
        self._relay: FirstExchange | PooledRelay | None = None
        self._interruption: ProxyError | None = None
        # Set while the connection speaks HTTP.
        self._http: HttpConnection | None = None
        # Set once the connection is a WebSocket: the host that the client wants to reach.
        self._websocket_host: str | None = None
        # The task copies the context. So every log line about this client carries this id, as do
        # the operations that it has scheduled.
        with context(request=f"c-{secrets.token_hex(6)}"):
            self.task = proxy.readiness.loop.create_task(self._run())
        # Not at the end of `_run`, because a task cancelled before its first step never runs it.
        self.task.add_done_callback(self._clean_up)

    @property
    def state(self) -> str:
        """What the client does now, for the figures."""
        if self.is_connecting:
            return "waiting"
        if self.is_parked:
            return "parked"
        if self._relay is not None:
            return "connected"
        return "http" if self._http is not None else "starting"

    def abandon(self) -> None:
        """Closes the connection without sending anything."""
        self.task.cancel()

    def interrupt(self, error: ProxyError) -> None:
        """Ends the connection, telling the client why if that is still possible."""
        if self._relay is not None:
            self._relay.interrupt(error.packet())
        else:
            self._interruption = error
            self.task.cancel()

    def park(self) -> None:
        """Parks the client: see `PooledRelay.park`. A client that is being connected to a pooler is
        parked once it is joined to that."""
        self._must_park = True
        if isinstance(self._relay, PooledRelay):
            self._relay.park()

    def confirm_again(self) -> bool:
        """See `interface.Client`."""
        self.must_confirm_again = self.is_connecting
        return self.is_connecting

    def end_login(self, reason: str) -> None:
        """See `interface.Client`."""
        self.interrupt(LoginEnded(reason))

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
            log.debug("connection lost", extra={"client": self.client_address, "error": str(error)})
        except TimeoutError:
            log.info("start-up timed out", extra={"client": self.client_address})
            figures.REFUSALS.labels("startup_timeout").inc()
        except asyncio.CancelledError:
            if self._interruption is None:
                raise
            await self._refuse(self._interruption)
        except Exception:
            log.exception("session failed", extra={"client": self.client_address})
            await self._refuse(ProxyError("internal error"))

    def _clean_up(self, _: "asyncio.Task[None]") -> None:
        self.channel.close()
        self._proxy.sessions.remove(self)

    async def _serve(self) -> None:
        bound = self._proxy.settings.startup_timeout
        async with asyncio.timeout(bound) as patience:
            if load_balancers := self._proxy.settings.load_balancers:
                self.client_address = await proxy_protocol.client_address(
                    self.channel, self.client_address, load_balancers=load_balancers
                )
                self._proxy.sessions.note_address(self)
            if await startup.speaks_http(self.channel, self._proxy.identity):
                # HTTP requests have time limits of their own.
                patience.reschedule(None)
                if not await self._serve_http():
                    return
                patience.reschedule(self._proxy.readiness.loop.time() + bound)
                self._login = LoginTimes()
            request = await startup.read_request(
                self.channel, self._proxy.identity, offers_tls=self._websocket_host is None
            )
            login = self._login
            assert login is not None
            login.requested_at = time.monotonic()
            if isinstance(request, startup.CancelRequest):
                await self._proxy.cancel(CancelKey(request.pid, request.secret))
                await self.channel.finish(b"", timeout=_FINAL_MESSAGE_TIMEOUT)
                return
            destination, sasl_final = await self._admit_postgres(request)
        login.admitted_at = time.monotonic()
        is_long = request.protocol >= messages.PROTOCOL_3_2

        def connected() -> tuple[bytes, CancelKey]:
            """Returns what the client is sent before the greeting, and its cancel key."""
            fields = {
                "client": self.client_address,
                "endpoint": destination.endpoint_id,
                "role": request.role,
                "pooled": destination.pooled,
                "ms": round((self.wake.connected_at - login.admitted_at) * 1000, 1),
                **self.wake.fields(login),
            }
            log.info("connected", extra=fields)
            over = "websocket" if self._websocket_host is not None else "direct"
            figures.CONNECTED.labels("pooled" if destination.pooled else over).inc()
            self.key = self._proxy.sessions.issue_key(self, long=is_long)
            return sasl_final, self.key

        kind = PooledClient if destination.pooled else DirectClient
        await kind(self, destination, self._proxy.readiness).serve(connected)

    def attach(self, connection: ComputeConnection, relay: FirstExchange | PooledRelay) -> None:
        """Records that the client is joined. From here on the relay ends the connection."""
        self._compute, self._relay = connection, relay
        if self._must_park:
            self.park()

    def first_answer(self) -> FirstAnswer | None:
        """See `relaying.client.Client`."""
        wake, login, self._login = self.wake, self._login, None
        if wake.start is None:
            return None
        assert self.admission is not None
        return FirstAnswer(partial(wake.answered, self.admission.endpoint_id, login))

    def detach(self) -> None:
        """Records that the client is joined to no compute. It may be joined again if its password
        is still valid, which the next compute is asked."""
        self._compute = self._relay = None
        self.is_parked = True
        assert self.route is not None
        self.route = replace(self.route, confirmed_by=None)

    def counting(self) -> AbstractContextManager[Tally]:
        """Returns the tally of the bytes sent to the client, once it has reached its compute."""
        assert self.admission is not None
        return self._proxy.directory.counting(self.admission.endpoint_id)

    async def _serve_http(self) -> bool:
        """Serves HTTP requests. Returns True if the connection has become a WebSocket, which
        carries the Postgres protocol from here on."""
        sessions = self._proxy.sessions
        self._http = HttpConnection(self.channel, is_draining=lambda: sessions.is_draining)
        self._login = None
        request = await self._http.serve(partial(self._proxy.queries.handle, self))
        if request is None:
            await self.channel.finish(b"", timeout=_FINAL_MESSAGE_TIMEOUT)
            return False
        self._http = None
        self._websocket_host = websocket.requested_host(request) or ""
        return True

    async def _admit_postgres(self, request: startup.StartupMessage) -> tuple[Destination, bytes]:
        """Finds the endpoint and authenticates the client. Returns the destination, and the
        AuthenticationSASLFinal that is still to be sent, or b""."""
        if self.channel.tls is None and not self._may_be_plain():
            raise InsecureConnection
        destination, password = await self._find_destination(request)
        prove = partial(self._authenticate, request, destination.endpoint_id, password)
        return await self.admit(destination, request.role, prove, equalizes_timing=True)

    async def _find_destination(
        self, request: startup.StartupMessage
    ) -> tuple[Destination, bytes | None]:
        """Returns the destination. If only the password can name the endpoint, asks the client for
        it in clear text and returns it as well; otherwise None."""
        try:
            destination = find_destination(
                request.parameters,
                server_name=self._server_name(),
                region_host=self._proxy.settings.region_host,
            )
        except (MissingEndpoint, ForeignServerName):
            password = await ask_for_password(self.channel, preamble=request.negotiation)
            found = find_in_password(password, request.parameters)
            if found is None:
                raise
            return found
        return destination, None

    def _server_name(self) -> str | None:
        if self._websocket_host is not None:
            return self._websocket_host
        return self.channel.tls.server_name if self.channel.tls is not None else None

    async def _authenticate(
        self,
        request: startup.StartupMessage,
        endpoint_id: str,
        password: bytes | None,
        verifier: scram.Verifier,
    ) -> bytes:
        """Authenticates the client; returns the AuthenticationSASLFinal, or b"" for a clear-text
        password. Raises PasswordFailed, ProtocolViolation, ConnectionLost."""
        if password is None and self._websocket_host is not None:
            # A browser's program cannot see the certificate of its TLS connection, so there is
            # nothing for SCRAM to bind to, and drivers send the password without being asked.
            password = await ask_for_password(self.channel, preamble=request.negotiation)
        if password is not None:
            await self._proxy.passwords.check(
                verifier,
                password,
                role=request.role,
                endpoint_id=endpoint_id,
                address=self.client_address,
            )
            return b""
        tls = self.channel.tls
        return await authenticate(
            self.channel,
            verifier,
            role=request.role,
            channel_binding=tls.channel_binding if tls is not None else None,
            preamble=request.negotiation,
        )

    async def admit(
        self,
        destination: Destination,
        role: str,
        prove: Callable[[scram.Verifier], Awaitable[Proof]],
        *,
        equalizes_timing: bool = False,
    ) -> tuple[Destination, Proof]:
        """Admits the client if `prove` shows that it is the role. An unknown endpoint or role gets
        the same error as a wrong password, after the same time.

        `prove` raises PasswordFailed; what it returns is returned here. `equalizes_timing` must be
        set if `prove` sends the client anything before the client has proved its identity. Raises
        ProxyError.
        """
        tls = self.channel.tls
        if tls is None and not self._may_be_plain():
            raise InsecureConnection
        asks = (origin_of(self.client_address), destination.endpoint_id)
        async with self._proxy.logins.share(asks):
            return await self._admit(destination, role, prove, equalizes_timing=equalizes_timing)

    async def _admit(
        self,
        destination: Destination,
        role: str,
        prove: Callable[[scram.Verifier], Awaitable[Proof]],
        *,
        equalizes_timing: bool,
    ) -> tuple[Destination, Proof]:
        proxy, tls = self._proxy, self.channel.tls
        due = answer_due(proxy.readiness.loop, proxy.directory.lookup_time())
        route = await proxy.directory.route(destination.endpoint_id, role)
        self.check_address(route, role)
        verifier = scram.parse_verifier(route.verifier) if route and route.verifier else None
        if verifier is None:
            name = f"{destination.endpoint_id}/{role}"
            verifier = scram.mock_verifier(name, proxy.settings.secret)
        if equalizes_timing:
            await due
        try:
            proof = await prove(verifier)
        except PasswordFailed:
            proxy.directory.note_refusal(route, role, address=self.client_address)
            await due
            await asyncio.sleep(proxy.failure_pace.pause(self.client_address))
            raise
        assert route is not None
        if tls is not None:
            proxy.identity.note_authenticated(tls.server_name)
        if route.disabled:
            raise DisabledEndpointRefused
        admission = Admission(
            route.account_id,
            destination.endpoint_id,
            role,
            account_connections=route.account_connections,
        )
        destination = for_the_pooler(destination.with_pooler(route.always_pooled))
        self.role, self.identity, self.route = role, route.identity, route
        proxy.sessions.admit(self, admission)
        return destination, proof

    def check_address(self, route: Route | None, role: str) -> None:
        """Raises AddressNotAllowed, PublicAddressRefused."""
        if route is None or route.rules is None:
            return
        try:
            route.rules.check(self.client_address)
        except ProxyError:
            self._proxy.directory.note_refusal(
                route, role, address=self.client_address, is_outside=True
            )
            raise

    def dismiss(self) -> None:
        """Ends the admission, because its purpose has ended. The session may be admitted again."""
        self._proxy.sessions.dismiss(self)

    async def connect_to_compute(
        self,
        destination: Destination,
        connect: Callable[[ComputeAddress], Awaitable[Connection]],
        *,
        discard: Callable[[Connection], None],
    ) -> Connection:
        """Connects the client to its compute: see `connecting.connect_to_compute`."""
        self._must_park = self.is_parked = False

        async def connect_within_share(address: ComputeAddress) -> Connection:
            async with self.share():
                return await connect(address)

        connection = await connect_to_compute(
            self._proxy, self, destination, connect_within_share, discard
        )
        if self._http is not None and self.wake.start is not None:
            self.wake.answered(destination.endpoint_id, None)
        return connection

    def share(self) -> AbstractAsyncContextManager[None]:
        """See `FairShares.share`; for the account that the session was admitted for."""
        assert self.admission is not None
        return self._proxy.shares.share(self.admission.account_id)

    def _may_be_plain(self) -> bool:
        allowed = self._proxy.settings.plain_connections
        if allowed is PlainConnections.LOOPBACK:
            return is_loopback(self.client_address)
        return allowed is PlainConnections.ALWAYS

    async def _refuse(self, error: ProxyError) -> None:
        fields = {
            "client": self.client_address,
            "endpoint": self.admission.endpoint_id if self.admission else None,
            "sqlstate": error.sqlstate,
            "error": str(error),
        }
        log.info("connection refused", extra=fields)
        figures.REFUSALS.labels(error.reason).inc()
        final_message = self._http.final_message(error) if self._http else error.packet()
        await self.channel.finish(final_message, timeout=_FINAL_MESSAGE_TIMEOUT)
