"""Sessions in computes that HTTP requests use one after the other. A new session costs Postgres a
process, which is more than most requests cost."""

import asyncio
import time
from dataclasses import dataclass
from weakref import WeakValueDictionary

from controlplane.proxy.authentication.scram import Verifier
from controlplane.proxy.directory.interface import ComputeAddress
from controlplane.proxy.over_http.compute_session import ComputeSession
from controlplane.proxy.wire.channel import closed_on_failure
from controlplane.proxy.wire.errors import ProxyError

# For one key; PgBouncer's limit for one role in one database. Further requests wait.
MAX_SESSIONS = 20
# Short, because an idle session keeps its database from being dropped, and keeps the settings that
# it began with. Long enough for a client that sends one request after the other.
IDLE_TIMEOUT = 5.0
MAX_AGE = 10.0  # seconds; a new session is refused if its role has lost the right to connect
_MAX_IDLE = 400


class SessionsTaken(ProxyError):
    sqlstate = "53300"
    words = (
        f"sorry, too many clients already: {MAX_SESSIONS} HTTP requests of this role are in "
        "progress, and none has ended in time"
    )


@dataclass(frozen=True, slots=True)
class SessionKey:
    """What two requests must have in common to use the same session.

    The verifier is part of it, so that no session is used after its role's password has changed.
    The pool also compares the address, which identifies the compute's run.
    """

    endpoint_id: str
    verifier: Verifier
    parameters: frozenset[tuple[bytes, bytes]]


class SessionPool:
    """Must be used within one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._places: WeakValueDictionary[SessionKey, asyncio.Semaphore] = WeakValueDictionary()
        # The oldest first, each with its key and with what will close it.
        self._idle: dict[ComputeSession, tuple[SessionKey, asyncio.TimerHandle]] = {}
        self._idle_by_key: dict[tuple[SessionKey, ComputeAddress], list[ComputeSession]] = {}

    def __len__(self) -> int:
        """Returns the number of idle sessions."""
        return len(self._idle)

    async def enter(self, key: SessionKey, *, timeout: float) -> asyncio.Semaphore:
        """Waits up to `timeout` seconds for a place to use one session of the key. Returns the
        key's places, whose `release` gives it back. Raises SessionsTaken."""
        places = self._places.get(key)
        if places is None:
            places = self._places[key] = asyncio.Semaphore(MAX_SESSIONS)
        if not places.locked():
            await places.acquire()
            return places
        try:
            async with asyncio.timeout(timeout):
                await places.acquire()
        except TimeoutError:
            raise SessionsTaken from None
        return places

    async def take(self, key: SessionKey, address: ComputeAddress) -> ComputeSession | None:
        """Returns an idle session at this address; None if there is none."""
        while idle := self._idle_by_key.get((key, address)):
            session = idle[-1]
            self._forget(session)
            with closed_on_failure(session):
                if await session.is_reusable():
                    return session
            session.close()
        return None

    def give_back(self, key: SessionKey, session: ComputeSession) -> None:
        """Keeps the session for a while. Closes it if it is broken or old; closes the oldest idle
        session if there are too many."""
        if session.is_broken or time.monotonic() > session.began_at + MAX_AGE:
            session.close()
            return
        end = self._loop.call_later(IDLE_TIMEOUT, self._close, session)
        self._idle[session] = key, end
        self._idle_by_key.setdefault((key, session.address), []).append(session)
        if len(self._idle) > _MAX_IDLE:
            self._close(next(iter(self._idle)))

    def drop(self, endpoint_id: str | None = None) -> None:
        """Closes the endpoint's idle sessions, or all."""
        for session, (key, _) in list(self._idle.items()):
            if endpoint_id in (None, key.endpoint_id):
                self._close(session)

    def _close(self, session: ComputeSession) -> None:
        self._forget(session)
        session.close()

    def _forget(self, session: ComputeSession) -> None:
        key, end = self._idle.pop(session)
        end.cancel()
        at = (key, session.address)
        self._idle_by_key[at].remove(session)
        if not self._idle_by_key[at]:
            del self._idle_by_key[at]
