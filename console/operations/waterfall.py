"""A run as a waterfall: its operations and their steps, in words and as bars to scale."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any, TypeGuard

from django.utils.safestring import SafeString

from console.api.resources.operations import Operation, Step
from console.operations.runs import OperationRow, Run
from console.operations.timescale import Bar, Mark, Scale, Span, lines
from console.pages.statuses import (
    can_be_cancelled,
    can_be_retried,
    is_unfinished,
    not_run_for,
    operation_name,
)
from console.templatetags.console_tags import duration, size

# Labels by the API's name of a step. A name without a label is shown as it is.
STEPS = {
    "waiting": "Waiting for an earlier operation",
    "queued": "Queued for a worker",
    "picked_up": "Started",
    "pausing": "Waiting for the next attempt",
    "locking": "Waiting for the branch's data",
    "connecting": "Connecting to the other host",
    "attaching_second_host": "Attaching a second host",
    "adding_received_log": "Adding the log that a second host has received",
    "copying": "Copying the data",
    "fetching": "Fetching the copy from the store",
    "copying_log": "Copying the log",
    "catching_up": "Catching up with what clients write",
    "handing_over": "Handing over to the other host",
    "copying_base": "Copying the newest full copy before the moment",
    "taking_base": "Taking the first full copy",
    "adding_log": "Adding the log since the full copy",
    "masking": "Masking and scanning the tables",
    "rewriting": "Writing all tables anew",
    "reading_schema": "Reading the schema",
    "writing_schema": "Writing the schema",
    "writing_checkpoint": "Writing a checkpoint",
    "checking_catalog": "Checking what is in the databases",
    "upgrading": "Upgrading the data",
    "restoring_functions": "Restoring functions",
    "syncing": "Flushing to disk",
    "removing": "Removing the data",
    "checking_data": "Checking the data",
    "measuring": "Measuring its size",
    "asking": "Checking whether it responds",
    "configuring": "Writing the configuration",
    "starting": "Starting Postgres",
    "recovering": "Recovering",
    "ready": "Postgres is ready",
    "stopping": "Stopping Postgres",
    "applying_catalog": "Applying roles and databases",
    "publishing": "Notifying the proxy",
    "undoing": "Rolling back",
}
# Steps in which no work is done.
WAITS = frozenset({"waiting", "queued", "pausing", "locking"})
SIZES = {"bytes": "{}", "of_bytes": "of {}", "bytes_left": "{} remaining"}

# Milliseconds in the queue after which a worker seems to be missing: a worker that runs takes
# urgent operations at once, and the others in their turn.
WORKER_MISSING_AFTER_MS = 15_000


@dataclass(frozen=True)
class StepRow:
    label: str
    shape: str
    tone: str
    # Further facts about it, as phrases.
    notes: Sequence[str]
    # The error in this step, in words.
    error: str
    # The operation that this step waited for; "" if it waited for none.
    operation_id: str
    operation_name: str
    # Whether an earlier attempt had the same error, so that it need not be shown again.
    is_same_again: bool
    started_at: datetime | None
    # Milliseconds: so far, if the step is under way; and from the beginning of the scale.
    duration_ms: int | None
    offset_ms: int | None
    bar: Bar | None
    # What is wrong with it, although nothing has failed.
    warning: str = ""


def step_rows(
    operation: Operation, relatives: Iterable[Operation], scale: Scale | None = None
) -> list[StepRow]:
    """Return the steps, oldest first; none if the server does not report them. An operation that is
    waited for is called by its name if it is one of `relatives`. Without a `scale`, the bars are
    relative to this operation."""
    steps = operation.steps
    if not steps:
        return []
    names = {other.id: f"“{operation_name(other)}”" for other in relatives}
    goes_on = is_unfinished(operation)
    spans = step_spans(operation)
    scale = scale or Scale.over(spans)
    rows: list[StepRow] = []
    for step, span in zip(steps, spans, strict=True):
        is_last = goes_on and step is steps[-1] and not step.finished_at
        errors = [row.error for row in rows]
        rows.append(_row(step, span, scale, names, errors, goes_on=is_last))
    return rows


def step_spans(operation: Operation) -> list[Span | None]:
    """Return when each step began and ended, as far as that is known."""
    end = datetime.now(UTC) if is_unfinished(operation) else operation.updated_at
    steps = operation.steps
    # A step that was cut off has no end; then the start of the next step counts as its end.
    ends = [*(step.started_at for step in steps[1:]), end]
    return [_span(step, end) for step, end in zip(steps, ends, strict=True)] if steps else []


def broken_off_in(operation: Operation) -> str:
    """Return the label of the step that failed; "" if none is known."""
    failed = [step for step in operation.steps if step.detail.get("error")]
    return step_label(failed[-1].name) if failed else ""


def warning_of(operation: Operation) -> str:
    """Return what is wrong with an unfinished operation, although nothing has failed."""
    return next((row.warning for row in step_rows(operation, ()) if row.warning), "")


def _span(step: Step, end: datetime | None) -> Span | None:
    """Return when the step began and ended; a step without an end lasts until `end`."""
    finished = step.finished_at or end
    if step.started_at is None or finished is None:
        return None
    return step.started_at, max(step.started_at, finished)


def _row(
    step: Step,
    span: Span | None,
    scale: Scale | None,
    names: Mapping[str, str],
    earlier_errors: Sequence[str],
    *,
    goes_on: bool,
) -> StepRow:
    error = str(step.detail.get("error") or "")
    shape, tone = "done", "waits" if step.name in WAITS else "quiet"
    if goes_on:
        shape, tone = "running", "pending"
    elif error:
        shape, tone = "cross", "bad"
    duration = step.duration_ms
    if duration is None and span:
        duration = round((span[1] - span[0]).total_seconds() * 1000)
    waited_for = step.detail.get("operation_id")
    operation_id = waited_for if isinstance(waited_for, str) else ""
    return StepRow(
        label="Waiting for" if operation_id and step.name == "waiting" else step_label(step.name),
        shape=shape,
        tone=tone,
        notes=_notes(step.detail),
        error=error,
        operation_id=operation_id,
        operation_name=names.get(operation_id, f"operation {operation_id[:8]}"),
        is_same_again=bool(error) and error in earlier_errors,
        started_at=step.started_at,
        duration_ms=duration,
        offset_ms=scale.offset_ms(step.started_at) if scale else None,
        bar=scale.bar(span) if span and scale else None,
        warning=_warning(step, duration) if goes_on else "",
    )


def _warning(step: Step, lasting_ms: int | None) -> str:
    if step.name != "queued" or lasting_ms is None or lasting_ms < WORKER_MISSING_AFTER_MS:
        return ""
    return (
        f"No worker has taken it for {duration(lasting_ms)}. Is the worker of its region running?"
    )


def step_label(name: str) -> str:
    return STEPS.get(name) or name.replace("_", " ").capitalize() or "A step"


def _notes(detail: Mapping[str, Any]) -> list[str]:
    notes = dict(detail)
    # Left out as evident: that everything was copied, and that it was the first attempt.
    done, whole = notes.get("bytes"), notes.get("of_bytes")
    if _is_number(done) and _is_number(whole) and done >= whole:
        del notes["of_bytes"]
    if notes.get("attempt") == 1:
        del notes["attempt"]
    return [
        words
        for name, value in notes.items()
        if name not in ("operation_id", "error") and (words := _note(name, value))
    ]


def _note(name: str, value: Any) -> str:
    """Return a phrase for one fact about a step; "" if there is no phrase for it."""
    if value is True:
        return name.replace("_", " ")
    if not value or not isinstance(value, str | int | float):
        return ""
    if name == "roles_and_databases":
        # Beside the words of its step, the number is enough.
        return str(value)
    if name in SIZES and _is_number(value):
        return SIZES[name].format(size(int(value)))
    return f"{name.replace('_', ' ')} {value}"


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


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
    # This one has no button of its own: a retry of the whole run begins with it anyway.
    first_to_retry = next(filter(can_be_retried, run.operations), None)
    lanes = [
        Lane(
            row=OperationRow(operation),
            bar=scale.bar(at_work) if scale and (at_work := _working_span(operation)) else None,
            offset_ms=scale.offset_ms(span[0]) if scale and span else None,
            steps=step_rows(operation, run.operations, scale),
            can_cancel=can_be_cancelled(operation),
            can_retry=can_be_retried(operation) and operation is not first_to_retry,
            not_run_for=not_run_for(operation),
        )
        for operation, span in zip(run.operations, spans, strict=True)
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
