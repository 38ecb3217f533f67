"""A run as a waterfall: its operations and their steps, each with its place in the whole run."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from django.utils.safestring import SafeString

from console.api.resources.operations import Operation
from console.operations.runs import OperationRow, Run, operation_rows
from console.operations.steps import StepRow, step_rows, step_spans
from console.operations.timescale import Bar, Mark, Scale, Span, lines
from console.pages.statuses import can_be_cancelled, can_be_retried, is_unfinished, not_run_for


@dataclass(frozen=True)
class Lane:
    """One operation of the run with its steps, each with its place in the whole run."""

    row: OperationRow
    bar: Bar | None
    # Milliseconds from the beginning of the run to its own.
    offset_ms: int | None
    steps: Sequence[StepRow]
    can_cancel: bool
    can_retry: bool
    # The id of the operation whose failure kept this one from beginning; "" if none did.
    not_run_for: str


@dataclass(frozen=True)
class Waterfall:
    lanes: Sequence[Lane]
    marks: Sequence[Mark]
    # Those of the marks.
    lines: SafeString

    @property
    def warning(self) -> str:
        """The first warning of a step, although nothing has failed."""
        steps = (step.warning for lane in self.lanes for step in lane.steps)
        return next(filter(None, steps), "")

    @property
    def has_pictures(self) -> bool:
        return any(lane.bar for lane in self.lanes)


def waterfall(run: Run) -> Waterfall:
    spans = [span_of(operation) for operation in run.operations]
    scale = Scale.over(spans)
    rows = operation_rows(run.operations)
    # This one has no button of its own: a retry of the whole run begins with it anyway.
    first_to_retry = next(filter(can_be_retried, run.operations), None)
    lanes = [
        Lane(
            row=row,
            bar=scale.bar(at_work) if scale and (at_work := _working_span(row.operation)) else None,
            offset_ms=scale.offset_ms(span[0]) if scale and span else None,
            steps=step_rows(row.operation, run.operations, scale),
            can_cancel=can_be_cancelled(row.operation),
            can_retry=can_be_retried(row.operation) and row.operation is not first_to_retry,
            not_run_for=not_run_for(row.operation),
        )
        for row, span in zip(rows, spans, strict=True)
    ]
    marks = scale.marks_since_begin() if scale else ()
    return Waterfall(lanes, marks, lines(marks))


def span_of(operation: Operation) -> Span | None:
    """Return the time from its request to its end, or so far; from its steps if they are known."""
    parts = [span for span in step_spans(operation) if span]
    if parts:
        return _total_span(operation, parts)
    end = datetime.now(UTC) if is_unfinished(operation) else operation.updated_at
    if operation.created_at is None or end is None:
        return None
    return operation.created_at, max(end, operation.created_at)


def _working_span(operation: Operation) -> Span | None:
    """Return the same without waiting for other operations; None if it only waited."""
    if not operation.steps:
        return None if not_run_for(operation) else span_of(operation)
    steps = zip(operation.steps, step_spans(operation), strict=True)
    parts = [span for step, span in steps if span and step.name != "waiting"]
    return _total_span(operation, parts) if parts else None


def _total_span(operation: Operation, parts: Sequence[Span]) -> Span:
    """Return the time from the first to the last part. An unfinished operation lasts until now,
    even if its latest step is not known yet."""
    so_far = [datetime.now(UTC)] if is_unfinished(operation) else []
    return parts[0][0], max([end for _, end in parts] + so_far)
