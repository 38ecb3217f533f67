"""Runs operations that were handed over (`scheduling`), and ends them: run, finish, retry, fail,
or bring to a safe point what somebody has cancelled (`cancelling`) meanwhile.

Called by the jobs, in a worker. Every transaction here begins by locking the project's row
(`locks`), and what needs a branch on disk has locked that before.
"""

import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial

from django.db import InterfaceError, OperationalError

from controlplane import clock
from controlplane.actors import ActorType, acting_as
from controlplane.compute.filesystem import lock_branches
from controlplane.compute.patience import Cancelled, patience
from controlplane.compute.steps import step
from controlplane.events.changes import operation_ended
from controlplane.events.recording import record
from controlplane.logs import context
from controlplane.models import (
    HOPEFUL,
    UNFINISHED,
    Branch,
    Operation,
    OperationStatus,
    Project,
)
from controlplane.models.reading import Reading
from controlplane.operations import story
from controlplane.operations.actions import ENDS, STARTS, details_of, rule_of
from controlplane.operations.effects import (
    settle_compute,
    settle_rows,
    settle_state,
    take_effect,
)
from controlplane.operations.locks import locked_project
from controlplane.operations.queue import Run, enqueue_operation
from controlplane.operations.replacing import replacement_of
from controlplane.operations.running import Refused
from controlplane.operations.scheduling import dispatch
from controlplane.operations.under_way import HandedBack, UnderWay, holding_branches, noted
from controlplane.operations.undoing import undo, undo_data
from controlplane.operations.words import without_paths, words_of
from controlplane.operations.work import Attempt

log = logging.getLogger(__name__)

OF_ID = "WHERE t.id = %(operation)s"
ALONE = Reading(Operation, OF_ID)
WHOLE = Reading(
    Operation,
    OF_ID,
    joined=[
        *("project", "project__region", "project__account"),
        *("branch", "branch__meter", "endpoint", "endpoint__branch"),
    ],
)
# Seconds before another try to bring what was cancelled to its safe point.
SETTLE_AGAIN = 1.0


def run(operation_id: uuid.UUID, *, runs: Sequence[Run] = ()) -> None:
    """Carry out an operation that was handed over; called by the job, again after a crash. `runs`
    are those of the job that were cut off before.

    What fails is tried again after a pause, as a job of its own, until the operation has
    failed for good. Raises only where the metadata database fails us, or where the worker ends
    before the work has begun: then the job engine calls again.
    """
    operation = _read(ALONE, operation_id)
    if operation.is_finished:
        return
    with (
        context(request=operation.request_id, operation=str(operation.id)),
        acting_as(operation.initiator),
        story.telling(operation, runs),
    ):
        _attempt(operation)


def _attempt(operation: Operation) -> None:
    began = time.monotonic()
    try:
        with (
            noted(operation) as attempt,
            _holding_branches_of(operation),
        ):
            # As it is now: the lock's holder may have been this same operation, taken for dead too
            # early.
            operation = _load(operation.id)
            if operation.is_finished:
                return
            story.go_on_from(operation)
            if not _work(operation, attempt):
                _bring_to_safe_point(operation, attempt)
                return
    except (OperationalError, InterfaceError, HandedBack):
        raise
    except Refused as refusal:
        _fail(operation, str(refusal))
    except Exception as error:
        log.exception("attempt failed", extra=_described(operation))
        _retry_or_fail(operation, words_of(error))
    else:
        ms = round((time.monotonic() - began) * 1000)
        log.info("operation finished", extra={**_described(operation), "ms": ms})


@contextmanager
def _holding_branches_of(operation: Operation) -> Iterator[None]:
    """Hold its branches; while that is waited for, it is a step of its story."""
    with ExitStack() as held:
        with step(story.LOCKING):
            held.enter_context(holding_branches(_branches_of(operation)))
        yield


def _work(operation: Operation, attempt: UnderWay) -> bool:
    """Do what the operation is for, and finish it; False where somebody has cancelled it."""
    if operation.status == OperationStatus.CANCELLING:
        return False
    rule = rule_of(operation)
    try:
        with patience(rule.bound, cancelled=attempt.cancelled) as attempt.patience:
            rule.run(_attempt_at(operation))
    except Cancelled:
        return False
    return _finish(operation)


def _described(operation: Operation) -> dict[str, str | None]:
    """What a line of the log says of it, beside its id and its request's."""
    return {"action": operation.action, "endpoint": operation.endpoint_id}


def _attempt_at(operation: Operation) -> Attempt:
    return Attempt(
        operation,
        details_of(operation.action, operation.details),
        is_awaited=partial(_is_awaited, operation),
    )


def _is_awaited(operation: Operation) -> bool:
    return Operation.objects.filter(
        endpoint=operation.endpoint,
        action__in=STARTS,
        status__in=HOPEFUL,
        created_at__gt=operation.created_at,
    ).exists()


def _is_in_the_way(operation: Operation) -> bool:
    """Whether somebody has asked meanwhile for the end of what this operation works for: a
    suspend or a deletion waits for the attempt under way, and not for another one."""
    later = Operation.objects.filter(
        project_id=operation.project_id,
        resources__overlap=[*operation.resources, operation.project_id],
        action__in=ENDS,
        status__in=UNFINISHED,
        created_at__gt=operation.created_at,
    )
    return later.exclude(chain=operation.chain).exists()


def _finish(operation: Operation) -> bool:
    """False where it was cancelled at the very end."""
    # The proxy, and whoever else waits, hears of it with the end of this transaction.
    with step("publishing"), locked_project(operation.project_id) as project:
        ended = _end(operation, OperationStatus.FINISHED)
        if ended:
            take_effect(operation)
            dispatch(project)
    return ended


def _bring_to_safe_point(operation: Operation, attempt: UnderWay) -> None:
    """End an operation that somebody has cancelled, once nothing half-done is left of it.

    The caller holds its branches. What was cancelled with it of its chain, which has not begun,
    ends with it. The rows that had to go back did so when the cancel was asked for.
    """
    with patience(rule_of(operation).bound) as attempt.patience, step("undoing"):
        undo(operation, _branches_of(operation))
    fresh = _load(operation.id)
    with locked_project(operation.project_id) as project:
        if not _end(fresh, OperationStatus.CANCELLED, error=fresh.error):
            return
        for later in Operation.objects.filter(
            chain=fresh.chain, status=OperationStatus.CANCELLING, dispatched_at=None
        ).order_by("created_at"):
            _end(later, OperationStatus.CANCELLED, error=later.error)
        settle_state(fresh)
        dispatch(project)
    log.info("operation cancelled", extra=_described(operation))


def _settle_later(operation: Operation, project: Project) -> None:
    """Have an operation that was cancelled while its attempt failed brought to its safe point by a
    job of its own; after a pause where it was that which failed."""
    was_settling = operation.status == OperationStatus.CANCELLING
    pause = timedelta(seconds=SETTLE_AGAIN)
    enqueue_operation(operation, project, at=clock.now() + pause if was_settling else None)


def _retry_or_fail(operation: Operation, reason: str) -> None:
    pauses = rule_of(operation).retry_pauses
    if operation.failures_count >= len(pauses) or _is_in_the_way(operation):
        _fail(operation, reason, attempt_failed=True)
        return
    pause = timedelta(seconds=pauses[operation.failures_count])
    with locked_project(operation.project_id) as project:
        fresh = Operation.objects.get(id=operation.id)
        if fresh.is_finished:
            return
        if fresh.status == OperationStatus.CANCELLING:
            _settle_later(operation, project)
            return
        now = clock.now()
        fresh.failures_count += 1
        fresh.error = without_paths(reason)
        fresh.retry_at = now + pause
        fresh.updated_at = max(now, fresh.updated_at)
        story.failed(operation, reason)
        fresh.steps = story.paused(operation, now, until=fresh.retry_at)
        fresh.save(update_fields=["failures_count", "error", "retry_at", "updated_at", "steps"])
        enqueue_operation(fresh, project, at=fresh.retry_at)


def _fail(operation: Operation, reason: str, *, attempt_failed: bool = False) -> None:
    """End the operation as failed, and what comes after it in its chain with it."""
    log.warning("operation failed", extra={**_described(operation), "error": reason})
    story.failed(operation, reason)
    with lock_branches(*_branches_of(operation)):
        rest = list(
            Operation.objects.filter(
                chain=operation.chain, status=OperationStatus.SCHEDULING
            ).order_by("created_at")
        )
        settle_compute(operation, rest)
        _settle_data(operation)
        with locked_project(operation.project_id) as project:
            operation.failures_count += attempt_failed
            if not _end(operation, OperationStatus.FAILED, error=reason):
                if not Operation.objects.get(id=operation.id).is_finished:
                    _settle_later(operation, project)
                return
            words = (
                f"not run: the operation {operation.id} ({operation.action}) before it failed: "
                f"{reason}"
            )
            ended = [one for one in rest if _end(one, OperationStatus.FAILED, error=words)]
            for one in (operation, *ended):
                settle_rows(one)
            dispatch(project)


def _settle_data(operation: Operation) -> None:
    """Leave the branch of a failed restore the data that it had. The caller holds its branches, so
    whoever has finished the operation meanwhile did so before."""
    if replacement_of(operation) and not _load(operation.id).is_finished:
        undo_data(operation)


def withdraw(operations: Sequence[Operation], status: OperationStatus, reason: str) -> None:
    """End operations that have not begun and never will. The caller holds the project's lock."""
    for operation in operations:
        _end(operation, status, error=reason)


def _end(operation: Operation, status: OperationStatus, *, error: str | None = None) -> bool:
    """Write a terminal status; False where the operation had ended already.

    The only place that does, so a terminal status never changes.
    """
    now = clock.now()
    words = error and without_paths(error)
    # What was cancelled comes to no other end, however far it had come.
    ends = UNFINISHED if status == OperationStatus.CANCELLED else HOPEFUL
    changed = Operation.objects.filter(id=operation.id, status__in=ends).update(
        status=status,
        error=words,
        failures_count=operation.failures_count,
        retry_at=None,
        updated_at=max(now, operation.updated_at),
        steps=story.ended(operation, now),
    )
    if changed and not _is_no_news(operation, status):
        record(operation_ended(operation, status, words))
    return changed == 1


def _is_no_news(operation: Operation, status: OperationStatus) -> bool:
    """A check that finds all well has changed nothing, and there are thousands a day."""
    return operation.initiator_type == ActorType.CHECK and status == OperationStatus.FINISHED


def _load(operation_id: uuid.UUID) -> Operation:
    """With all that its work and its end look at."""
    operation = _read(WHOLE, operation_id)
    project, branch, endpoint = operation.project, operation.branch, operation.endpoint
    if branch is not None:
        branch.project = project
    if endpoint is not None:
        endpoint.project = endpoint.branch.project = project
    return operation


def _read(reading: Reading[Operation], operation_id: uuid.UUID) -> Operation:
    operation = reading.first(operation=operation_id)
    if operation is None:
        raise Operation.DoesNotExist
    return operation


def _branches_of(operation: Operation) -> list[str]:
    if operation.project_id in operation.resources:
        branches = Branch.objects.filter(project_id=operation.project_id)
        return list(branches.values_list("id", flat=True))
    return [held for held in operation.resources if held.startswith("br-")]
