"""The proxy as a whole. It listens, starts a session for each client, and ends sessions when asked
from outside. `manage.py proxy` runs it."""

import asyncio
import contextlib
import errno
import gc
import logging
import resource
import socket
from collections import Counter
from collections.abc import Callable, Sequence

from controlplane.metrics import figures
from controlplane.metrics.sampling import SAMPLE_INTERVAL
from controlplane.proxy.authentication.access_rules import AccessRules
from controlplane.proxy.authentication.passwords import PasswordChecks
from controlplane.proxy.directory.interface import Client, Directory
from controlplane.proxy.limits.connection_limits import OpeningSessions
from controlplane.proxy.limits.pending_clients import FailurePace, PendingTurns
from controlplane.proxy.listeners import open_listeners
from controlplane.proxy.peers.connections import Peers
from controlplane.proxy.sessions.context import (
    CancelForwarder,
    ConnectedSessions,
    ProxyContext,
    SharedWakes,
)
from controlplane.proxy.sessions.queries import Queries
from controlplane.proxy.sessions.session import Session
from controlplane.proxy.settings import ProxySettings
from controlplane.proxy.wire.errors import AdministratorShutdown
from controlplane.proxy.wire.peer_tls import PeerCertificate
from controlplane.proxy.wire.readiness import Readiness
from controlplane.proxy.wire.startup import CancelKey
from controlplane.proxy.wire.tls import TlsIdentity

log = logging.getLogger(__name__)

_ACCEPT_BATCH_SIZE = 8
# Every process is notified of each new connection, and the first one to accept it serves it. A
# process that has more sessions than another waits this long before it accepts.
_YIELD_DELAY = 0.001
# Without a free descriptor no connection can be accepted. Others will be freed soon.
_EXHAUSTION_RETRY_DELAY = 0.1
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_STOP_TIMEOUT = 3.0
# Seconds between two checks of whether a proxy that drains still has clients.
_DRAIN_CHECK_INTERVAL = 0.2
_STATES = ("starting", "http", "waiting", "connected", "parked", "passed_on")


class Proxy:
    """Must be made and used within one running event loop."""

    def __init__(
        self,
        settings: ProxySettings,
        directory: Directory,
        identity: TlsIdentity,
        peer_certificate: PeerCertificate | None = None,
    ) -> None:
        """Without a `peer_certificate`, clients of endpoints on other hosts are refused."""
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self.sessions = ConnectedSessions(settings)
        self._readiness = Readiness(self._loop)
        self._passwords = PasswordChecks()
        self.queries = Queries(self._readiness)
        self._context = ProxyContext(
            settings=settings,
            identity=identity,
            readiness=self._readiness,
            sessions=self.sessions,
            directory=directory,
            wakes=SharedWakes(directory),
            failure_pace=FailurePace(self._loop.time),
            pending_turns=PendingTurns(),
            opening=OpeningSessions(),
            passwords=self._passwords,
            queries=self.queries,
            peers=Peers(peer_certificate, settings, directory, self._readiness),
            cancel=self._cancel,
        )
        self._listeners: list[socket.socket] = []
        self._cancel_forwarder = (
            CancelForwarder(settings.siblings, self._cancel_here, self._readiness)
            if settings.siblings
            else None
        )
        self._has_stopped = False
        self._must_drain = asyncio.Event()

    @property
    def port(self) -> int:
        """The port in use, which the system has chosen if the settings name port 0."""
        port: int = self._listeners[0].getsockname()[1]
        return port

    async def start(self, listeners: Sequence[socket.socket] | None = None) -> None:
        """Begins to accept connections, on `listeners` or else on new ones. Raises OSError if the
        address is in use."""
        raise_descriptor_limit()
        if self._cancel_forwarder is not None:
            await self._cancel_forwarder.start()
        self._listeners = list(listeners or open_listeners(self._settings))
        for listener in self._listeners:
            self._loop.add_reader(listener.fileno(), self._accept_or_yield, listener)
        log.info("listening", extra={"host": self._settings.host, "port": self.port})

    def drop(self, endpoint_id: str, because: str) -> int:
        """Ends the endpoint's connections with 57P01 and the reason. Returns how many there
        were."""
        self._context.wakes.discard(endpoint_id)
        self.queries.pool.drop(endpoint_id)
        sessions = self.sessions.of_endpoint(endpoint_id)
        for session in sessions:
            session.interrupt(AdministratorShutdown(because))
        return len(sessions)

    def enforce_rules(self, endpoint_id: str, rules: AccessRules | None) -> int:
        """Ends the endpoint's connections from addresses that `rules` no longer allow, with 57P01
        and the reason. Returns how many there were."""
        sessions = [
            session
            for session in self.sessions.of_endpoint(endpoint_id)
            if rules is not None and not rules.allows(session.client_address)
        ]
        for session in sessions:
            because = f"this IP address {session.client_address} is no longer allowed to connect"
            session.interrupt(AdministratorShutdown(because))
        if sessions:
            extra = {"endpoint": endpoint_id, "connections": len(sessions)}
            log.info("connections from disallowed addresses dropped", extra=extra)
        return len(sessions)

    def park(self, endpoint_id: str, because: str) -> None:
        """See `interface.Clients`."""
        # New clients must not be connected to the compute that is to stop.
        if because:
            self._context.wakes.discard(endpoint_id)
        for session in self.sessions.of_endpoint(endpoint_id):
            session.park(because)

    def of_endpoint(self, endpoint_id: str) -> Sequence[Client]:
        """Returns the endpoint's clients that have authenticated."""
        return self.sessions.of_endpoint(endpoint_id)

    async def _cancel(self, key: CancelKey) -> None:
        """Cancels the query that runs under the key. An unknown key is ignored, as in Postgres."""
        if self._cancel_forwarder is not None and not self._cancel_forwarder.is_ours(key):
            await self._cancel_forwarder.forward(key)
        else:
            await self._cancel_here(key)

    async def _cancel_here(self, key: CancelKey) -> None:
        session = self.sessions.find_by_key(key)
        if session is not None:
            await session.cancel_query()

    async def stop(self) -> None:
        """Stops listening, tells every client why it ends, and closes. May be called again."""
        if self._has_stopped:
            return
        self._has_stopped = True
        self._close_listeners()
        if self._cancel_forwarder is not None:
            await self._cancel_forwarder.stop()
        tasks = [session.task for session in self.sessions.all()]
        for session in self.sessions.all():
            session.interrupt(AdministratorShutdown("the proxy is being stopped"))
        if tasks:
            _, unfinished = await asyncio.wait(tasks, timeout=_STOP_TIMEOUT)
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
        self.queries.close()
        self._passwords.close()
        self._readiness.close()

    async def keep_figures(self, sample: Callable[[], None]) -> None:
        """Updates the figures of this process until cancelled. `sample` is `sampling.begin`'s."""
        while True:
            states = Counter(session.state for session in self.sessions.all())
            for state in _STATES:
                figures.CONNECTIONS.labels(state).set(states[state])
            figures.HTTP_SESSIONS.set(len(self.queries.pool))
            certificate, ends_at = self._context.identity.expires()
            figures.CERTIFICATE_EXPIRY.labels(certificate).set(ends_at.timestamp())
            await asyncio.to_thread(sample)
            await asyncio.sleep(SAMPLE_INTERVAL)

    def drain(self) -> None:
        """Accepts no more connections: `serve` returns once all clients have left, or after
        `drain_timeout`."""
        self._close_listeners()
        self.sessions.drain()
        self._must_drain.set()

    async def serve(
        self,
        listeners: Sequence[socket.socket] | None = None,
        *,
        started: Callable[[], object] = lambda: None,
    ) -> None:
        """Accepts connections, as `start` does, until it is cancelled or has drained; then stops.
        Calls `started` once it accepts connections."""
        if not self.sessions.is_draining:
            await self.start(listeners)
            started()
        # The objects that exist by now stay, so later collections need not examine them.
        gc.collect()
        gc.freeze()
        try:
            await self._must_drain.wait()
            deadline = self._loop.time() + self._settings.drain_timeout
            while len(self.sessions) and self._loop.time() < deadline:
                await asyncio.sleep(_DRAIN_CHECK_INTERVAL)
        finally:
            stopping = asyncio.ensure_future(self.stop())
            while not stopping.done():
                # If cancelled again, it still tells the clients first.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.shield(stopping)

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            self._loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()

    def _accept_or_yield(self, listener: socket.socket) -> None:
        if self.sessions.is_fullest:
            self._loop.remove_reader(listener.fileno())
            self._loop.call_later(_YIELD_DELAY, self._accept_delayed, listener)
        else:
            self._accept(
                listener, most=1 if self._cancel_forwarder is not None else _ACCEPT_BATCH_SIZE
            )

    def _accept_delayed(self, listener: socket.socket) -> None:
        """Accepts connections that no sibling has accepted: a sibling may hang or have died."""
        if listener in self._listeners:
            self._resume_accepting(listener)
            self._accept(listener, most=_ACCEPT_BATCH_SIZE)

    def _accept(self, listener: socket.socket, *, most: int) -> None:
        for _ in range(most):
            try:
                connection, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause_accepting(listener, error)
                    return
                # The client closed the connection before it was accepted.
                continue
            session = Session(self._context, connection, client_address=address[0])
            self.sessions.add(session)

    def _pause_accepting(self, listener: socket.socket, error: OSError) -> None:
        log.warning("cannot accept connections", extra={"error": str(error)})
        self._loop.remove_reader(listener.fileno())
        self._loop.call_later(_EXHAUSTION_RETRY_DELAY, self._resume_accepting, listener)

    def _resume_accepting(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener.fileno(), self._accept_or_yield, listener)


def raise_descriptor_limit() -> None:
    """Raises the soft limit of descriptors, usually 1,024, to the hard limit. Each connection
    needs two descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
