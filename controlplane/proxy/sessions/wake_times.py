"""The times of a client's way to its compute, for the log and the figures."""

import asyncio
import logging
import time
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controlplane import clock
from controlplane.metrics import figures
from controlplane.proxy.directory.interface import ComputeStart
from controlplane.proxy.wire.errors import (
    ControlPlaneUnavailable,
    DisabledEndpointRefused,
    ProxyError,
    QuotaUsedUp,
    WakeTimeout,
)
from controlplane.traces import spans
from controlplane.traces.context import TraceContext, new_span

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

    # The trace that its start belongs to, if it requests the start; None before the way begins.
    own: TraceContext | None = None
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

    def fields(self, login: LoginTimes | None = None) -> dict[str, float | str]:
        """For a line of the log: the parts in milliseconds, and the start's operation."""
        parts = login.parts() if login else {}
        if self.start is None:
            return _milliseconds(parts)
        return {
            **_milliseconds({**parts, **self.parts()}),
            **self._start_fields(),
        }

    def succeeded(self) -> None:
        """Notes that the client has a session in its compute."""
        self.connected_at = time.monotonic()
        if self.start is not None:
            figures.WAKES.labels("woken").observe(self.connected_at - self.began_at)
            observe_parts(self.parts())

    def failed(self, error: BaseException, endpoint_id: str) -> None:
        """Counts the wake by its outcome, if it was one. A session that a running compute refuses
        was none."""
        if self.start is not None or self.is_waking:
            outcome = next((name for kind, name in _OUTCOMES if isinstance(error, kind)), "failed")
            now = time.monotonic()
            figures.WAKES.labels(outcome).observe(now - self.began_at)
            if spans.is_on():
                span, parent = self._span()
                about = {"perch.endpoint": endpoint_id, "perch.outcome": outcome}
                began = _time_of(self.began_at)
                spans.note("wake", span, parent, began, _time_of(now), error=outcome, about=about)

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
        fields = {
            "endpoint": endpoint_id,
            **_milliseconds({**around, **self.parts()}),
            "ms": round((sum(around.values()) + self.connected_at - self.began_at) * 1000, 1),
            **self._start_fields(),
        }
        log.info("woken", extra=fields)
        if spans.is_on():
            self._note_spans(endpoint_id, around)

    def _start_fields(self) -> dict[str, str]:
        start = self.start
        assert start is not None
        trace = {"trace": start.cause.trace_id} if start.cause else {}
        return {"operation": start.operation, **trace}

    def _span(self) -> tuple[TraceContext, TraceContext | None]:
        """The wake's span, and its parent. The wake that has requested the start is the root of the
        trace. Any other has the start's operation as its parent."""
        assert self.own is not None
        cause = self.start.cause if self.start else None
        if self.start is None or cause is None or cause == self.own:
            return self.own, None
        parent = cause.of_operation(uuid.UUID(self.start.operation))
        return parent.with_span(new_span()), parent

    def _note_spans(self, endpoint_id: str, around: dict[str, float]) -> None:
        """Hands over the spans of the wake and of its parts. The first answer follows the wake: the
        client may send its first request long after it was connected."""
        assert self.start is not None
        first_answer = around.get("first_answer")
        before = {part: around[part] for part in around if part != "first_answer"}
        span, parent = self._span()
        at = began = _time_of(self.began_at - sum(before.values()))
        about = {"perch.endpoint": endpoint_id, "perch.operation": self.start.operation}
        ended = _time_of(self.connected_at)
        spans.note("wake", span, parent, began, ended, serves=parent is None, about=about)
        for part, seconds in {**before, **self.parts()}.items():
            until = at + timedelta(seconds=seconds)
            spans.note(part, span.with_span(new_span()), span, at, until, about={})
            at = until
        if first_answer is not None:
            now = clock.now()
            first_sent_at = now - timedelta(seconds=first_answer)
            spans.note(
                "first_answer", span.with_span(new_span()), span, first_sent_at, now, about={}
            )


def observe_parts(parts: dict[str, float]) -> None:
    """Notes the seconds of these parts of a wake."""
    for part, seconds in parts.items():
        figures.WAKE_PARTS.labels(part).observe(seconds)


def _time_of(at: float) -> datetime:
    """Convert a time of `time.monotonic`."""
    return clock.now() - timedelta(seconds=time.monotonic() - at)


def _milliseconds(parts: dict[str, float]) -> dict[str, float | str]:
    return {f"{part}_ms": round(seconds * 1000, 1) for part, seconds in parts.items()}
