"""The wakes that clients wait for: one is shared among all clients that wait for the same compute.
And the times of each client's way to its compute, from its acceptance on, for the log and the
figures."""

import asyncio
import logging
import socket
import struct
import time
from dataclasses import dataclass, field

from controlplane.metrics import figures
from controlplane.proxy.directory.interface import ComputeAddress, ComputeStart, Directory
from controlplane.proxy.wire.errors import (
    ControlPlaneUnavailable,
    DisabledEndpointRefused,
    ProxyError,
    QuotaUsedUp,
    WakeTimeout,
)

log = logging.getLogger(__name__)

# The outcomes in the figures of wakes that failed. The first class that matches is used.
_OUTCOMES: tuple[tuple[type[BaseException], str], ...] = (
    (WakeTimeout, "timeout"),
    (ControlPlaneUnavailable, "unavailable"),
    (DisabledEndpointRefused, "refused"),
    (QuotaUsedUp, "refused"),
    (ProxyError, "failed"),
    (asyncio.CancelledError, "abandoned"),
)
# The member tcpi_last_data_recv of struct tcp_info, in milliseconds, after 8 bytes and 11 numbers.
_SINCE_LAST_DATA = struct.Struct("=52xI")


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


def waited_for_accept(connection: socket.socket) -> float:
    """Returns the seconds since the last data came from the client, or, before any, since the
    kernel has connected it. Called at once after the accept, this is how long the client has
    waited for that: after its first packet, every client waits for an answer."""
    try:
        found = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SINCE_LAST_DATA.size)
    except OSError:
        return 0.0  # it has been reset
    if len(found) < _SINCE_LAST_DATA.size:
        return 0.0
    (milliseconds,) = _SINCE_LAST_DATA.unpack(found)
    return float(milliseconds) / 1000


@dataclass(slots=True)
class LoginTimes:
    """When a client was accepted, had sent its start-up message, and was admitted."""

    # Seconds that the client had waited for its acceptance.
    waited: float = 0.0
    accepted_at: float = field(default_factory=time.monotonic)
    requested_at: float = 0.0
    admitted_at: float = 0.0

    def parts(self) -> dict[str, float]:
        """Seconds. `tls` ends with the start-up message, so it includes the client's round
        trips."""
        return {
            "accepted": self.waited,
            "tls": self.requested_at - self.accepted_at,
            "password": self.admitted_at - self.requested_at,
        }


@dataclass(slots=True)
class Wake:
    """A client's way from its admission, or from its first word after it was parked, to a session
    in its compute."""

    began_at: float = field(default_factory=time.monotonic)
    # Set while the directory is asked to wake the compute.
    is_waking: bool = False
    # The start that the client has waited for; None if its compute ran already.
    start: ComputeStart | None = None
    connected_at: float = 0.0

    def parts(self) -> dict[str, float]:
        """Seconds, within this client's own wait: another client may have caused the start."""
        start = self.start
        assert start is not None
        handed_over = max(self.began_at, start.handed_over_at)
        running = max(handed_over, start.running_at)
        return {
            "handed_over": handed_over - self.began_at,
            "waited": running - handed_over,
            "connected": self.connected_at - running,
        }

    def fields(self, login: LoginTimes) -> dict[str, float | str]:
        """For a line of the log: the parts in milliseconds, and the start's operation."""
        if self.start is None:
            return _milliseconds(login.parts())
        parts = {**login.parts(), **self.parts()}
        return {**_milliseconds(parts), "operation": self.start.operation}

    def succeeded(self) -> None:
        """Notes that the client has a session in its compute."""
        self.connected_at = time.monotonic()
        if self.start is not None:
            figures.WAKES.labels("woken").observe(self.connected_at - self.began_at)
            observe_parts(self.parts())

    def failed(self, error: BaseException) -> None:
        """Counts the wake by its outcome, if it was one. A session that a running compute refuses
        was none."""
        if self.start is not None or self.is_waking:
            outcome = next((name for kind, name in _OUTCOMES if isinstance(error, kind)), "failed")
            figures.WAKES.labels(outcome).observe(time.monotonic() - self.began_at)

    def answered(
        self, endpoint_id: str, login: LoginTimes | None, first_answer: float | None = None
    ) -> None:
        """Logs all parts of the wake, once the compute has answered for the first time, after
        `first_answer` seconds. `login` has the times of a client that has just logged in. The
        requests of SQL over HTTP have neither."""
        around = login.parts() if login else {}
        if first_answer is not None:
            around["first_answer"] = first_answer
        observe_parts(around)
        assert self.start is not None
        fields = {
            "endpoint": endpoint_id,
            **_milliseconds({**around, **self.parts()}),
            "ms": round((sum(around.values()) + self.connected_at - self.began_at) * 1000, 1),
            "operation": self.start.operation,
        }
        log.info("woken", extra=fields)


def observe_parts(parts: dict[str, float]) -> None:
    """Notes the seconds of these parts of a wake."""
    for part, seconds in parts.items():
        figures.WAKE_PARTS.labels(part).observe(seconds)


def _milliseconds(parts: dict[str, float]) -> dict[str, float | str]:
    return {f"{part}_ms": round(seconds * 1000, 1) for part, seconds in parts.items()}
