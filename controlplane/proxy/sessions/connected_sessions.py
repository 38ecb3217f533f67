"""The sessions of all connected clients: those that have not authenticated, those of each endpoint,
and the cancel key of each."""

import asyncio
import hmac
import secrets
from typing import Protocol

from controlplane.proxy.directory.interface import RoleIdentity
from controlplane.proxy.limits.connection_limits import (
    Admission,
    ConnectionCounts,
    ConnectionLimits,
)
from controlplane.proxy.limits.pending_clients import PendingClients
from controlplane.proxy.relaying.compute import CancelKey
from controlplane.proxy.settings import Siblings, marked
from controlplane.proxy.wire.errors import ProxyError

_PID_BITS = 31
# How many more sessions than a sibling a process may have, and still accept the next one at once.
_MAX_AHEAD = 1
_SHORT_SECRET_BYTES = 4
_LONG_SECRET_BYTES = 32


class Connected(Protocol):
    """What `ConnectedSessions` and its callers need of a session; see `session.Session`."""

    client_address: str
    # None until the client has authenticated.
    admission: Admission | None
    # None until the client is joined to its compute.
    key: CancelKey | None
    task: "asyncio.Task[None]"
    role: str
    identity: RoleIdentity
    is_parked: bool

    @property
    def state(self) -> str: ...

    def abandon(self) -> None: ...
    def interrupt(self, error: ProxyError) -> None: ...
    def park(self, because: str) -> None: ...
    def confirm_again(self) -> bool: ...
    def end_login(self, reason: str) -> None: ...
    async def cancel_query(self) -> None: ...


class ConnectedSessions:
    """`max_pending` limits the sessions that have not authenticated."""

    def __init__(
        self,
        *,
        max_pending: int,
        limits: ConnectionLimits,
        siblings: Siblings | None,
        host_id: str = "",
    ) -> None:
        self._siblings = siblings
        self._host_id = host_id
        self.shared = siblings.counts.of(siblings.number) if siblings else None
        self._counts = ConnectionCounts(limits, self.shared)
        self._all: set[Connected] = set()
        self._pending = PendingClients(max_pending)
        self._by_endpoint: dict[str, set[Connected]] = {}
        self._by_pid: dict[int, tuple[bytes, Connected]] = {}
        # True if this process accepts no further clients, because another generation does.
        self.is_draining = False
        self._note_sessions()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, session: Connected) -> None:
        self._all.add(session)
        self._pending.add(session)
        self._note_sessions()

    def note_address(self, session: Connected) -> None:
        """See `PendingClients.note_address`."""
        self._pending.note_address(session)

    def admit(self, session: Connected, admission: Admission) -> None:
        """Counts a session that has authenticated, until `remove` or `dismiss`.

        Raises TooManyConnections, and then does not count it.
        """
        self.count(session, admission)
        self._by_endpoint.setdefault(admission.endpoint_id, set()).add(session)

    def count(self, session: Connected, admission: Admission) -> None:
        """Counts a session as `admit` does, without making it one of the endpoint's: another host
        has admitted the client, and ends its connection if the endpoint changes."""
        self._counts.add(admission)
        session.admission = admission
        self._pending.remove(session)

    def dismiss(self, session: Connected) -> None:
        """Ends the session's admission. It counts as one that has not authenticated, like an HTTP
        connection between its requests."""
        self._leave(session)
        session.admission = None
        self._pending.add(session)

    def issue_key(self, session: Connected, *, long: bool) -> CancelKey:
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

    def find_by_key(self, key: CancelKey) -> Connected | None:
        secret, session = self._by_pid.get(key.pid, (b"", None))
        return session if hmac.compare_digest(secret, key.secret) else None

    def remove(self, session: Connected) -> None:
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

    def _leave(self, session: Connected) -> None:
        if session.admission is not None:
            self._counts.remove(session.admission)
            endpoint_id = session.admission.endpoint_id
            sessions = self._by_endpoint.get(endpoint_id, set())
            sessions.discard(session)
            if not sessions:
                self._by_endpoint.pop(endpoint_id, None)

    def of_endpoint(self, endpoint_id: str) -> list[Connected]:
        return list(self._by_endpoint.get(endpoint_id, ()))

    def all(self) -> list[Connected]:
        return list(self._all)
