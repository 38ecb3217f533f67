"""What all sessions of a proxy share: the set of them all, with their limits and cancel keys, and
the other objects that they use."""

import asyncio
import contextlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from controlplane.proxy.authentication.passwords import PasswordChecks
from controlplane.proxy.directory.interface import ComputeAddress, Directory
from controlplane.proxy.limits.connection_limits import (
    Admission,
    ConnectionCounts,
    OpeningSessions,
)
from controlplane.proxy.limits.pending_clients import FailurePace, PendingClients, PendingTurns
from controlplane.proxy.peers.connections import Peers
from controlplane.proxy.relaying import compute
from controlplane.proxy.sessions.queries import Queries
from controlplane.proxy.settings import ProxySettings, Siblings, marked
from controlplane.proxy.wire import startup
from controlplane.proxy.wire.errors import ProxyError
from controlplane.proxy.wire.readiness import Readiness
from controlplane.proxy.wire.startup import CancelKey
from controlplane.proxy.wire.tls import TlsIdentity

if TYPE_CHECKING:
    from controlplane.proxy.sessions.session import Session

_PID_BITS = 31
# How many more sessions than a sibling a process may have, and still accept the next one at once.
_MAX_AHEAD = 1
_SHORT_SECRET_BYTES = 4
_LONG_SECRET_BYTES = 32
# Seconds in which a forwarded cancel request must have been served.
_FORWARD_TIMEOUT = 10.0


class ConnectedSessions:
    """The sessions of all connected clients: those that have not authenticated, those of each
    endpoint, and the cancel key of each."""

    def __init__(self, settings: ProxySettings) -> None:
        self._siblings = siblings = settings.siblings
        self._host_id = settings.host_id
        self.shared = siblings.counts.of(siblings.number) if siblings else None
        self._counts = ConnectionCounts(settings.limits, self.shared)
        self._all: set[Session] = set()
        self._pending = PendingClients(settings.max_pending)
        self._by_endpoint: dict[str, set[Session]] = {}
        self._by_pid: dict[int, tuple[bytes, Session]] = {}
        # True if this process accepts no further clients, because another generation does.
        self.is_draining = False
        self._note_sessions()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, session: "Session") -> None:
        self._all.add(session)
        self._pending.add(session)
        self._note_sessions()

    def note_address(self, session: "Session") -> None:
        """See `PendingClients.note_address`."""
        self._pending.note_address(session)

    def note_proved(self, session: "Session") -> None:
        """Notes that the session is not a client's, but another host's own, by its certificate. So
        it never has to make room."""
        self._pending.remove(session)

    def admit(self, session: "Session", admission: Admission) -> None:
        """Counts a session that has authenticated, until `remove` or `dismiss`.

        Raises TooManyConnections, and then does not count it.
        """
        self.count(session, admission)
        self._by_endpoint.setdefault(admission.endpoint_id, set()).add(session)

    def count(self, session: "Session", admission: Admission) -> None:
        """Counts a session as `admit` does, without making it one of the endpoint's: another host
        has admitted the client, and ends its connection if the endpoint changes."""
        self._counts.add(admission)
        session.admission = admission
        self._pending.remove(session)

    def dismiss(self, session: "Session") -> None:
        """Ends the session's admission. It counts as one that has not authenticated, like an HTTP
        connection between its requests."""
        self._leave(session)
        session.admission = None
        self._pending.add(session)

    def issue_key(self, session: "Session", *, long: bool) -> CancelKey:
        """Returns a new key, unlike any in use; `long` if the client speaks protocol 3.2."""
        pid = self._random_pid()
        while pid in self._by_pid:
            pid = self._random_pid()
        secret = secrets.token_bytes(_LONG_SECRET_BYTES if long else _SHORT_SECRET_BYTES)
        self._by_pid[pid] = secret, session
        return CancelKey(pid, secret)

    def _random_pid(self) -> int:
        pid = marked(secrets.randbits(_PID_BITS), self._host_id)
        return self._siblings.own_pid(pid) if self._siblings else pid

    def find_by_key(self, key: CancelKey) -> "Session | None":
        secret, session = self._by_pid.get(key.pid, (b"", None))
        return session if hmac.compare_digest(secret, key.secret) else None

    def remove(self, session: "Session") -> None:
        self._all.discard(session)
        self._note_sessions()
        self._pending.remove(session)
        if session.key is not None:
            self._by_pid.pop(session.key.pid, None)
        self._leave(session)

    def drain(self) -> None:
        """Notes that this process accepts no further clients."""
        self.is_draining = True
        if self.shared is not None:
            self.shared.accept_no_more()

    def _note_sessions(self) -> None:
        if self.shared is not None and not self.is_draining:
            self.shared.note_sessions(len(self._all))

    @property
    def is_fullest(self) -> bool:
        """True if a sibling should rather accept the next connection, because it has fewer."""
        fewest = self.shared.fewest_sessions() if self.shared is not None else None
        return fewest is not None and len(self._all) > fewest + _MAX_AHEAD

    def _leave(self, session: "Session") -> None:
        if session.admission is not None:
            self._counts.remove(session.admission)
            endpoint_id = session.admission.endpoint_id
            sessions = self._by_endpoint.get(endpoint_id, set())
            sessions.discard(session)
            if not sessions:
                self._by_endpoint.pop(endpoint_id, None)

    def of_endpoint(self, endpoint_id: str) -> list["Session"]:
        return list(self._by_endpoint.get(endpoint_id, ()))

    def all(self) -> list["Session"]:
        return list(self._all)


@dataclass(slots=True)
class _PendingWake:
    task: asyncio.Task[ComputeAddress]
    waiting: int = 0


class SharedWakes:
    """Shares one wake among all clients that wait for the same compute."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._pending: dict[tuple[str, bool], _PendingWake] = {}

    async def wake(
        self, endpoint_id: str, *, pooled: bool, refused: ComputeAddress | None
    ) -> ComputeAddress:
        """As `Directory.wake`, but joins a call that is already under way. The last caller to stop
        waiting cancels the call."""
        key = (endpoint_id, pooled)
        pending = self._pending.get(key)
        if pending is None:
            call = self._directory.wake(endpoint_id, pooled=pooled, refused=refused)
            pending = _PendingWake(asyncio.ensure_future(call))
            self._pending[key] = pending
            pending.task.add_done_callback(lambda _: self._finish(key, pending))
        pending.waiting += 1
        try:
            return await asyncio.shield(pending.task)
        finally:
            pending.waiting -= 1
            if pending.waiting == 0 and not pending.task.done():
                self._finish(key, pending)
                pending.task.cancel()

    def discard(self, endpoint_id: str) -> None:
        """Makes later callers wake anew. A call under way may return the old compute's address."""
        for pooled in (False, True):
            self._pending.pop((endpoint_id, pooled), None)

    def _finish(self, key: tuple[str, bool], pending: _PendingWake) -> None:
        if self._pending.get(key) is pending:
            del self._pending[key]


@dataclass(eq=False)
class CancelForwarder:
    """Forwards cancel requests between the proxy processes behind one port. The process that first
    accepts a connection serves it, so a cancel request may not arrive at the process that runs its
    query. The process id in the cancel key identifies that process. `cancel` is called with each
    key that a sibling sent here."""

    _siblings: Siblings
    _cancel: Callable[[CancelKey], Awaitable[None]]
    _readiness: Readiness
    _server: asyncio.Server | None = field(default=None, init=False)

    async def start(self) -> None:
        path = self._siblings.socket(self._siblings.number)
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, path)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def is_ours(self, key: CancelKey) -> bool:
        return self._siblings.owner_of(key.pid) == self._siblings.number

    async def forward(self, key: CancelKey) -> None:
        """Sends the cancel request to the sibling that issued the key, and waits until it is
        done."""
        address = ComputeAddress(self._siblings.socket(self._siblings.owner_of(key.pid)))
        await compute.cancel(address, key, readiness=self._readiness)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ProxyError, asyncio.IncompleteReadError, TimeoutError, OSError):
            async with asyncio.timeout(_FORWARD_TIMEOUT):
                head = await reader.readexactly(startup.HEAD_SIZE)
                rest = await reader.readexactly(startup.packet_size(head) - startup.HEAD_SIZE)
                request = startup.parse(head + rest)
                if isinstance(request, CancelKey):
                    await self._cancel(request)
        writer.close()


@dataclass(frozen=True, slots=True)
class ProxyContext:
    """The objects that all sessions share."""

    settings: ProxySettings
    identity: TlsIdentity
    readiness: Readiness
    sessions: ConnectedSessions
    directory: Directory
    wakes: SharedWakes
    failure_pace: FailurePace
    pending_turns: PendingTurns
    opening: OpeningSessions
    passwords: PasswordChecks
    queries: Queries
    peers: Peers
    # Cancels the query that runs under the key, in this process or in another one of this host.
    cancel: Callable[[CancelKey], Awaitable[None]]
