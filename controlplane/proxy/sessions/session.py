"""One client's connection from its first byte to its last: start-up, password, wake, relay. A
connection may speak HTTP instead; its requests are admitted and reach computes in the same ways."""

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

from controlplane.logs import context
from controlplane.metrics import figures
from controlplane.proxy.directory.interface import ComputeAddress, RoleIdentity, Route, Tally
from controlplane.proxy.limits.connection_limits import Admission
from controlplane.proxy.over_http import websocket
from controlplane.proxy.over_http.connection import HttpConnection
from controlplane.proxy.over_http.statements import Sender
from controlplane.proxy.peers.header import ADMITTED, PassedOn, SeenTls
from controlplane.proxy.peers.passing import LeadsElsewhere, PassedClient, PeerRequests
from controlplane.proxy.pooling.pooled_client import PooledClient
from controlplane.proxy.pooling.pooled_relay import PooledRelay
from controlplane.proxy.relaying import compute
from controlplane.proxy.relaying.compute import ComputeConnection, Connection
from controlplane.proxy.relaying.direct import DirectClient, FirstExchange
from controlplane.proxy.relaying.relay import FirstAnswer, Relay
from controlplane.proxy.sessions.admitting import admit_postgres, read_request
from controlplane.proxy.sessions.connecting import (
    Connecting,
    LoginTimes,
    Wake,
    waited_for_accept,
)
from controlplane.proxy.sessions.context import ProxyContext
from controlplane.proxy.sessions.passing_on import (
    begin_passing_on,
    cancel,
    connect_for_requests,
)
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.channel import Channel
from controlplane.proxy.wire.destination import Destination
from controlplane.proxy.wire.errors import ConnectionLost, LetGo, LoginEnded, ProxyError
from controlplane.proxy.wire.startup import CancelKey
from controlplane.proxy.wire.tls import ClientTlsSocket

log = logging.getLogger(__name__)

# How many seconds a refused client is given to read the error.
_FINAL_MESSAGE_TIMEOUT = 2.0


class Session:
    def __init__(
        self, proxy: ProxyContext, connection: socket.socket, *, client_address: str
    ) -> None:
        self.proxy = proxy
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
        # See `interface.Client`. `_must_park` says why what the client has reached, or is about to
        # reach, is to stop; "" if it is not.
        self.is_parked = False
        self._must_park = ""
        # True if the compute that the client has reached last is on another host.
        self._is_served_elsewhere = False
        self._compute: ComputeConnection | None = None
        self._relay: FirstExchange | PooledRelay | Relay | None = None
        self._interruption: ProxyError | None = None
        # Set while the connection speaks HTTP.
        self._http: HttpConnection | None = None
        # Set once the connection is a WebSocket: the host that the client wants to reach.
        self.websocket_host: str | None = None
        # Set if another host's proxy has passed the client on; and the client's requests that are
        # passed on from here.
        self.passed_on: PassedOn | None = None
        # The connection string of its last request over HTTP.
        self.sender: Sender | None = None
        self.peer_requests = PeerRequests(partial(connect_for_requests, self))
        # The task copies the context. So every log line about this client carries this id, as do
        # the operations that it has scheduled.
        with context(request=f"c-{secrets.token_hex(6)}"):
            self.task = proxy.readiness.loop.create_task(self._run())
        # Not at the end of `_run`, because a task cancelled before its first step never runs it.
        self.task.add_done_callback(self._clean_up)

    @property
    def tls(self) -> ClientTlsSocket | SeenTls | None:
        """The client's own TLS connection, to this proxy or to the one that has passed it on."""
        return self.channel.tls if self.passed_on is None else self.passed_on.tls

    @property
    def domains(self) -> Sequence[str]:
        """See `ProxySettings.domains`; with those of the proxy that has passed the client on."""
        own = self.proxy.settings.domains
        return own if self.passed_on is None else [*own, *self.passed_on.domains]

    @property
    def is_admitted_elsewhere(self) -> bool:
        """True if another host's proxy has admitted the client, and connects it again if it is let
        go."""
        return self.passed_on is not None and self.passed_on.admitted is not None

    @property
    def state(self) -> str:
        """What the client does now, for the figures."""
        if isinstance(self._relay, Relay):
            return "passed_on"
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

    def park(self, because: str) -> None:
        """Parks the client: see `PooledRelay.park`. A client that is being connected to a pooler is
        parked once it is joined to that. `because` says why the compute stops."""
        self._must_park = because
        if isinstance(self._relay, PooledRelay | FirstExchange):
            self._relay.park(because)

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
                self._compute.address, self._compute.cancel_key, readiness=self.proxy.readiness
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
        self.peer_requests.close()
        self.proxy.sessions.remove(self)

    async def _serve(self) -> None:
        async with asyncio.timeout(self.proxy.settings.startup_timeout) as patience:
            request = await read_request(self, patience)
            if request is None:
                return
            login = self._login
            assert login is not None
            login.requested_at = time.monotonic()
            if isinstance(request, CancelKey):
                await cancel(self, request)
                await self.channel.finish(b"", timeout=_FINAL_MESSAGE_TIMEOUT)
                return
            try:
                destination, sasl_final = await admit_postgres(self, request)
            except LeadsElsewhere as found:
                passed = await begin_passing_on(self, found, request)
                if passed is None:
                    await self.channel.finish(b"", timeout=_FINAL_MESSAGE_TIMEOUT)
                    return
                patience.reschedule(None)
                await self.relay_to_peer(passed)
                return
            if self.passed_on is not None and not self.is_admitted_elsewhere:
                await self.channel.write(ADMITTED)
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
            over = "websocket" if self.websocket_host is not None else "direct"
            figures.CONNECTED.labels("pooled" if destination.pooled else over).inc()
            self.key = self.proxy.sessions.issue_key(self, long=is_long)
            return sasl_final, self.key

        kind = PooledClient if destination.pooled else DirectClient
        await kind(self, destination, self.proxy.readiness).serve(connected)

    def attach(self, connection: ComputeConnection, relay: FirstExchange | PooledRelay) -> None:
        """Records that the client is joined. From here on the relay ends the connection."""
        self._compute, self._relay = connection, relay
        if self._must_park:
            self.park(self._must_park)

    def first_answer(self) -> FirstAnswer | None:
        """See `relaying.compute.Client`."""
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
        if self.is_admitted_elsewhere:
            # Not within the relay's call, which goes on.
            self.proxy.readiness.loop.call_soon(self.interrupt, LetGo())

    def counting(self) -> AbstractContextManager[Tally]:
        """Returns the tally of the bytes sent to the client, once it has reached its compute."""
        assert self.admission is not None
        if self._is_served_elsewhere:
            return nullcontext(Tally())  # the other host counts
        return self.proxy.directory.counting(self.admission.endpoint_id)

    async def serve_http(self) -> bool:
        """Serves HTTP requests. Returns True if the connection has become a WebSocket, which
        carries the Postgres protocol from here on."""
        sessions = self.proxy.sessions
        queries = self.proxy.queries
        self._http = HttpConnection(
            self.channel,
            queries.memory,
            is_draining=lambda: sessions.is_draining,
            turns=self.proxy.pending_turns,
            pause=lambda: self.proxy.failure_pace.pause(self.client_address),
        )
        self._login = None
        request = await self._http.serve(partial(queries.handle, self))
        if request is None:
            await self.channel.finish(b"", timeout=_FINAL_MESSAGE_TIMEOUT)
            return False
        self._http = None
        self.websocket_host = websocket.requested_host(request) or ""
        self._login = LoginTimes()
        return True

    async def relay_to_peer(self, passed: PassedClient) -> None:
        """Passes bytes on between the client and the other host's proxy until one side ends."""
        with passed.relaying() as self._relay:
            await self._relay.done

    def running_compute(self) -> ComputeAddress | None:
        """Returns the address of the client's compute, if that can be known without asking anybody
        and nothing of the endpoint has changed since the client was admitted. Otherwise the client
        must be connected by `connect_to_compute`, which checks again whether it may connect."""
        assert self.route is not None
        recent = self.proxy.directory.recent(self.route.endpoint_id, self.role)
        return recent[1] if recent is not None and recent[0] == self.route else None

    def note_authenticated(self) -> None:
        """Notes that the client has shown a correct password, even if it is refused now."""
        if self._http is not None:
            self._http.note_authenticated()
        if self.tls is not None:
            self.proxy.identity.note_authenticated(self.tls.server_name)

    async def connect_to_compute(
        self, destination: Destination, connect: Callable[[ComputeAddress], Awaitable[Connection]]
    ) -> Connection:
        """Connects the client to its compute: see `Connecting`."""
        self._must_park, self.is_parked = "", False

        async def connect_in_turn(address: ComputeAddress) -> Connection:
            self._is_served_elsewhere = address.elsewhere is not None
            if self._is_served_elsewhere:
                return await connect(address)  # waits for the wake
            assert self.admission is not None
            async with self.proxy.opening.counted(self.admission.account_id):
                return await connect(address)

        connection = await Connecting(self, destination, connect_in_turn).run()
        if self._http is not None and self.wake.start is not None:
            self.wake.answered(destination.endpoint_id, None)
        return connection

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
