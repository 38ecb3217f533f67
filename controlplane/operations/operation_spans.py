"""The spans of an operation that has ended, made from its steps: what it waited for, and each
attempt with the parts of its work. The span that has caused an operation is the parent of the
operation's."""

from collections.abc import Sequence
from datetime import datetime

from controlplane.compute.steps import Step
from controlplane.models import Operation, OperationStatus
from controlplane.operations.step_history import PAUSING, PICKED_UP, QUEUED, WAITING
from controlplane.traces import spans
from controlplane.traces.context import TraceContext, new_span

# The name of an attempt's span; the steps that follow PICKED_UP are its children.
RUN = "run"


def span_of(operation: Operation) -> TraceContext | None:
    """Return the context of the operation's own span; None if it belongs to no trace. If spans are
    sent, an operation that no span has caused has a trace of its own."""
    cause = TraceContext.parse(operation.traceparent)
    if cause is None and spans.is_on():
        cause = spans.sampled(TraceContext(operation.id.int, 0))
    return cause and cause.of_operation(operation.id)


def note_spans(
    operation: Operation,
    status: OperationStatus,
    steps: Sequence[Step],
    ended: datetime,
    *,
    error: str,
) -> None:
    """Hand over the spans of the operation, which has ended with this status and these steps."""
    span = span_of(operation)
    if span is None or not spans.is_on():
        return
    about = {
        "perch.operation": str(operation.id),
        "perch.status": status.value,
        "perch.project": operation.project_id,
        "perch.branch": operation.branch_id,
        "perch.endpoint": operation.endpoint_id,
        "perch.lane": operation.lane,
        "perch.failed_attempts": operation.failures_count,
        "perch.request": operation.request_id or None,
    }
    cause = TraceContext.parse(operation.traceparent)
    failure = error if status == OperationStatus.FAILED else ""
    spans.note(
        operation.action, span, cause, operation.created_at, ended, error=failure, about=about
    )
    for run in _by_attempt(steps):
        parent = span
        if run[0].name == PICKED_UP:
            whole = Step(RUN, run[0].started_at, run[-1].finished_at, run[0].detail)
            parent = _note_step(whole, span, ended)
            run = run[1:]
        for step in run:
            _note_step(step, parent, ended)


def _by_attempt(steps: Sequence[Step]) -> list[list[Step]]:
    """Return the steps in lists: of an attempt from PICKED_UP on, and of each wait alone."""
    parts: list[list[Step]] = []
    for step in steps:
        is_wait = step.name in (WAITING, QUEUED, PAUSING)
        if is_wait or step.name == PICKED_UP or not parts or parts[-1][0].name != PICKED_UP:
            parts.append([step])
        else:
            parts[-1].append(step)
    return parts


def _note_step(step: Step, parent: TraceContext, ended: datetime) -> TraceContext:
    span = parent.with_span(new_span())
    error = str(step.detail.get("error", ""))
    about = {
        f"perch.{name}": value
        for name, value in step.detail.items()
        if name != "error" and isinstance(value, str | int | float)
    }
    until = step.finished_at or ended
    spans.note(step.name, span, parent, step.started_at, until, error=error, about=about)
    return span
