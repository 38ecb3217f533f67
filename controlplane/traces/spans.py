"""Sends spans to OpenTelemetry, by its SDK. Without OTEL_EXPORTER_OTLP_ENDPOINT, or without the
extra `traces`, nothing is imported, and every function returns at once.

A span is handed to the SDK after it has ended, with its times. Its id is known earlier, because
other spans refer to it. An operation's row has the id of the span that caused it, and the id of the
operation's own span is part of the operation's id. So processes need not exchange ids of spans."""

import logging
import os
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from controlplane.traces.context import TraceContext, new_span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

log = logging.getLogger(__name__)

IS_WANTED = bool(os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"))
# The ids of the span that is being handed to the SDK, and of its trace.
_ids: ContextVar[TraceContext] = ContextVar("span_ids")
_once = threading.Lock()
_service = ""


def begin(process: str) -> None:
    """Send the spans of this process from now on, under the name `process`."""
    global _service
    _service = f"perch-{process}"


def child_of(parent: TraceContext | None) -> TraceContext | None:
    """Return the context of a new span: in the parent's trace, or in a trace of its own. If no
    spans are sent, this is the parent."""
    if not is_on():
        return parent
    return parent.with_span(new_span()) if parent else new_trace()


def new_trace() -> TraceContext:
    """Return the context of the first span of a trace, which is recorded if the SDK's sampler
    wants it."""
    return sampled(TraceContext.new())


def sampled(root: TraceContext) -> TraceContext:
    """Return the context of a trace's first span as the SDK's sampler decides."""
    provider = _provider() if IS_WANTED else None
    if provider is None:
        return root
    result = provider.sampler.should_sample(None, root.trace, "root")
    is_sampled = result.decision.is_sampled()  # type: ignore[no-untyped-call]
    return TraceContext(root.trace, root.span, is_sampled)


def is_on() -> bool:
    """Whether spans are sent."""
    return IS_WANTED and _provider() is not None


def note(
    name: str,
    span: TraceContext,
    parent: TraceContext | None,
    began: datetime,
    ended: datetime,
    *,
    serves: bool = False,
    error: str = "",
    about: Mapping[str, str | float | bool | None],
) -> None:
    """Hand a span that has ended to the SDK. `serves` is true if the span answers a request from
    outside Perch. `error` says why it failed. `about` has its attributes; those that are None are
    left out."""
    provider = _provider() if IS_WANTED and span.is_sampled else None
    if provider is None:
        return
    from opentelemetry import trace

    context = trace.set_span_in_context(trace.INVALID_SPAN)
    if parent is not None:
        flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
        before = trace.SpanContext(parent.trace, parent.span, is_remote=True, trace_flags=flags)
        context = trace.set_span_in_context(trace.NonRecordingSpan(before))
    token = _ids.set(span)
    try:
        ended_span = provider.get_tracer("perch").start_span(
            name,
            context,
            kind=trace.SpanKind.SERVER if serves else trace.SpanKind.INTERNAL,
            start_time=_nanoseconds(began),
            attributes={key: value for key, value in about.items() if value is not None},
        )
    finally:
        _ids.reset(token)
    if error:
        ended_span.set_status(trace.StatusCode.ERROR, error)
    ended_span.end(_nanoseconds(max(began, ended)))


def _nanoseconds(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000) * 1000


def _provider() -> "TracerProvider | None":
    if not _service:
        return None
    with _once:
        return _made_provider()


@cache
def _made_provider() -> "TracerProvider | None":
    """Make the provider when it is first needed. That is after the last fork of the process, which
    the provider's thread would not survive."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import IdGenerator
    except ImportError:
        log.warning("no traces are sent: install perch-postgres[traces]")
        return None

    class GivenIds(IdGenerator):
        def generate_trace_id(self) -> int:
            return _ids.get().trace

        def generate_span_id(self) -> int:
            return _ids.get().span

    about: dict[str, Any] = {"service.name": _service, "service.version": version("perch-postgres")}
    provider = TracerProvider(
        resource=Resource.create(about),
        id_generator=GivenIds(),
        # A process must not wait for a collector when it ends.
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
