"""The history of an operation, in steps. No other module reads or writes `Operation.steps`.

The row holds the steps as {name, started_at, finished_at, detail}, oldest first: what the operation
waited for, then for each attempt its time in the queue, when a worker picked it up, and the parts
of its work (`compute.host.steps`). The parts of an attempt under way are in memory. The statement
that ends the attempt writes them, so they cost no statement of their own. While an attempt lasts,
`write_lasting` also writes them repeatedly.

Each attempt also writes the steps of earlier runs that were cut off and could not write their own.
"""

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from controlplane.clock import now
from controlplane.compute.host.steps import Step, recording
from controlplane.models import UNFINISHED, Host, Operation, Run
from controlplane.operations.actions.words import failure_message, without_paths
from controlplane.operations.queue.jobs import picked_up_at

# The steps that are not part of the work. A wait for the branches' locks is left out if it was
# short.
WAITING, QUEUED, PICKED_UP, PAUSING = "waiting", "queued", "picked_up", "pausing"
LOCKING, MIN_SHOWN_WAIT = "locking", timedelta(milliseconds=50)
CUT_OFF = "interrupted: its worker exited, or the service's database did not answer"
# Seconds after which an attempt counts as lasting.
LASTING_AFTER = 1.0
# The most that the clocks of this host and of the database may differ by.
MAX_CLOCK_DIFFERENCE = timedelta(seconds=1)

Stored = dict[str, Any]


# Before the work


def wait(operation: Operation, **reason: Any) -> bool:
    """Record what the operation waits for from now on. Returns False if that was recorded already.
    The caller writes the row."""
    steps: list[Stored] = operation.steps
    if steps and steps[-1]["finished_at"] is None:
        if steps[-1]["detail"] == reason:
            return False
        began = now()
        steps[-1]["finished_at"] = began.isoformat()
    else:
        began = operation.created_at
    steps.append(_stored(Step(WAITING, began, detail=reason)))
    return True


def end_wait(operation: Operation, at: datetime) -> None:
    """End the present wait, because the operation is dispatched. The caller writes the row."""
    _close(operation.steps, at)


# During the work


@dataclass(eq=False)
class _Attempt:
    """The steps of an attempt under way."""

    operation_id: uuid.UUID
    failures_before: int
    runs: Sequence[Run]
    # The steps that the row had before the attempt.
    before: list[Stored] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    written: list[Stored] = field(default_factory=list)

    def so_far(self) -> list[Stored]:
        # Copy the list: the thread that does the work may append to it at any time.
        steps = self.steps.copy()
        return [*self.before, *(_stored(step) for step in steps if not _was_short_wait(step))]


_attempt: ContextVar[_Attempt | None] = ContextVar("attempt", default=None)
# The attempts of this process. The set's own operations are atomic.
_under_way: set[_Attempt] = set()


@contextmanager
def recording_attempt(operation: Operation, runs: Sequence[Run] = ()) -> Iterator[None]:
    """Record what runs inside as an attempt at the operation, which a worker has just picked up.

    `runs` are the earlier runs of the same attempt, which were cut off.
    """
    attempt = _Attempt(operation.id, operation.failures_count, runs)
    number = operation.failures_count + 1
    attempt.steps.append(_moment(PICKED_UP, now(), attempt=number))
    token = _attempt.set(attempt)
    continue_from(operation)
    _under_way.add(attempt)
    try:
        with recording(attempt.steps):
            yield
    finally:
        _under_way.discard(attempt)
        _attempt.reset(token)


def continue_from(operation: Operation) -> None:
    """Make the attempt's steps follow the steps of the row, which was just read."""
    attempt = _attempt.get()
    assert attempt is not None
    before = [dict(step) for step in operation.steps]
    picked_up = attempt.steps[0]
    if any(step["started_at"] == picked_up.started_at.isoformat() for step in before):
        return  # this attempt itself wrote the row's steps meanwhile
    queued_at = operation.retry_at or operation.dispatched_at or operation.created_at
    for run in attempt.runs:
        if not _is_recorded(run, before):
            number = operation.failures_count + 1
            before.append(_stored(Step(QUEUED, queued_at, max(queued_at, run.picked_up_at))))
            before.append(_stored(_moment(PICKED_UP, run.picked_up_at, attempt=number)))
            before[-1]["finished_at"] = None
        queued_at = run.put_back_at
        _cut_off(before, queued_at)
    _cut_off(before, picked_up.started_at)
    # Steps follow one another in time, whatever put the job into the queue.
    ends = [datetime.fromisoformat(step["finished_at"]) for step in before]
    queued_at = min(max([queued_at, *ends]), picked_up.started_at)
    before.append(_stored(Step(QUEUED, queued_at, picked_up.started_at)))
    attempt.before = before


def failed(operation: Operation, reason: str) -> None:
    """Store the reason with the step that the failed attempt was interrupted in."""
    attempt = _attempt_at(operation)
    if attempt is not None:
        last = attempt.steps[-1]
        broken_off = last if last.error is not None else attempt.steps[0]
        broken_off.detail["error"] = without_paths(reason)


def write_lasting(host: Host) -> None:
    """Write the steps of the attempts that last."""
    for attempt in _under_way.copy():
        steps = attempt.so_far()
        if time.monotonic() - attempt.began < LASTING_AFTER or steps == attempt.written:
            continue
        # An attempt that has ended meanwhile has written all its steps; this filter then excludes
        # its row.
        Operation.objects.filter(
            id=attempt.operation_id,
            status__in=UNFINISHED,
            failures_count=attempt.failures_before,
        ).update(steps=steps)
        attempt.written = steps


# At the end


def ended(operation: Operation, at: datetime) -> list[Stored]:
    """Return the steps to write to the row of an operation that ends."""
    attempt = _attempt_at(operation)
    steps = attempt.so_far() if attempt else [dict(step) for step in operation.steps]
    _close(steps, at)
    return steps


def paused(operation: Operation, at: datetime, *, until: datetime) -> list[Stored]:
    """Return the steps to write to the row of an operation that will be retried after a pause."""
    return [*ended(operation, at), _stored(Step(PAUSING, at, until))]


# For readers


def steps_of(operation: Operation) -> list[Step]:
    """Return the steps of an operation that was just read, oldest first; a step under way has no
    end. An attempt writes its steps at its end, and from one second on repeatedly if it lasts."""
    at = now()
    steps = read(operation.steps)
    last = steps[-1] if steps else None
    if last and last.finished_at and last.finished_at > at:
        last.finished_at = None
    is_handed_over = operation.status in UNFINISHED and operation.dispatched_at is not None
    if not is_handed_over or (last and last.finished_at is None):
        return steps
    queued_at = last.finished_at if last and last.name == PAUSING else operation.dispatched_at
    if queued_at is not None and (last is None or last.name in (WAITING, PAUSING)):
        # An attempt has just begun and has written nothing yet.
        picked_up = picked_up_at(operation.id)
        steps.append(Step(QUEUED, queued_at, picked_up and max(picked_up, queued_at)))
        if picked_up:
            number = operation.failures_count + 1
            steps.append(_moment(PICKED_UP, picked_up, attempt=number))
    return steps


def read(steps: Sequence[Stored]) -> list[Step]:
    """Return steps as they are in a row."""
    return [_read(stored) for stored in steps]


def _attempt_at(operation: Operation) -> _Attempt | None:
    """Return the attempt under way in this thread, if it is one at the operation."""
    attempt = _attempt.get()
    return attempt if attempt and attempt.operation_id == operation.id else None


def _was_short_wait(step: Step) -> bool:
    return (
        step.name == LOCKING
        and step.finished_at is not None
        and step.finished_at - step.started_at < MIN_SHOWN_WAIT
    )


def _is_recorded(run: Run, steps: Sequence[Stored]) -> bool:
    """Return whether a run that was cut off managed to write that it had begun."""
    return any(
        step["name"] == PICKED_UP
        and run.picked_up_at - MAX_CLOCK_DIFFERENCE <= datetime.fromisoformat(step["started_at"])
        and datetime.fromisoformat(step["started_at"]) <= run.put_back_at
        for step in steps
    )


def _cut_off(steps: list[Stored], at: datetime) -> None:
    """End the steps that were under way in a run that was cut off, at the time when this was
    found out."""
    for step in steps:
        began = datetime.fromisoformat(step["started_at"])
        if step["finished_at"] is None and began <= at:
            step["finished_at"] = at.isoformat()
            step["detail"] = {**step["detail"], "error": CUT_OFF}


def _close(steps: list[Stored], at: datetime) -> None:
    """End steps that are under way, and pauses whose end is still to come."""
    for step in steps:
        end = step["finished_at"]
        if end is None or datetime.fromisoformat(end) > at:
            step["finished_at"] = max(at, datetime.fromisoformat(step["started_at"])).isoformat()


def _moment(name: str, at: datetime, **detail: Any) -> Step:
    return Step(name, at, at, detail)


def _stored(step: Step) -> Stored:
    detail = dict(step.detail)
    if isinstance(step.error, Exception):
        detail.setdefault("error", without_paths(failure_message(step.error)))
    elif step.error is not None:
        detail.setdefault("error", "cancelled before it was done")
    end = step.finished_at
    return {
        "name": step.name,
        "started_at": step.started_at.isoformat(),
        "finished_at": end and end.isoformat(),
        "detail": detail,
    }


def _read(stored: Stored) -> Step:
    end = stored["finished_at"]
    return Step(
        stored["name"],
        datetime.fromisoformat(stored["started_at"]),
        end and datetime.fromisoformat(end),
        stored["detail"],
    )
