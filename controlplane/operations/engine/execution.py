"""Runs operations that were dispatched (`scheduling`) and ends them: finishes, retries or fails
them, or brings an operation cancelled meanwhile (`cancelling`) to a safe point.

Called by the queue's jobs, in a worker. Every transaction here begins by locking the project's row
(`locks`). Work that needs a branch on disk has locked the branch before that.
"""

import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial

from django.db import InterfaceError, OperationalError, transaction

from controlplane import clock
from controlplane.actors import ActorType, acting_as
from controlplane.compute.host.filesystem import lock_branches
from controlplane.compute.host.patience import Cancelled, patience
from controlplane.compute.host.steps import step
from controlplane.events.changes import operation_ended
from controlplane.events.recording import record
from controlplane.logs import context
from controlplane.metrics import figures
from controlplane.models import (
    MAY_SUCCEED,
    UNFINISHED,
    Action,
    Branch,
    Operation,
    OperationStatus,
    Project,
    Run,
)
from controlplane.models.reading import Reading
from controlplane.operations.actions.computes import StartRefused
from controlplane.operations.actions.handlers import Attempt
from controlplane.operations.actions.table import ENDS, STARTS, details_of, rule_of
from controlplane.operations.actions.words import failure_message, without_paths
from controlplane.operations.engine import step_history
from controlplane.operations.engine.effects import (
    settle_compute,
    settle_rows,
    settle_state,
    take_effect,
)
from controlplane.operations.engine.replacing import replacement_of
from controlplane.operations.engine.scheduling import dispatch
from controlplane.operations.engine.undoing import undo, undo_data
from controlplane.operations.locks import locked_project
from controlplane.operations.own_host import HostTaken, refuse_if_taken
from controlplane.operations.queue.jobs import enqueue_operation
from controlplane.operations.service_quality import note_start
from controlplane.operations.under_way import HandedBack, UnderWay, holding_branches, registered

log = logging.getLogger(__name__)

OF_ID = "WHERE t.id = %(operation)s"
ALONE = Reading(Operation, OF_ID)
WHOLE = Reading(
    Operation,
    OF_ID,
    joined=[
        *("project", "project__host", "project__account"),
        *("branch", "branch__meter", "endpoint", "endpoint__branch"),
    ],
)
# Seconds before a retry of bringing a cancelled operation to its safe point.
SETTLE_RETRY_DELAY = 1.0
# The ends of a start that say whether endpoints start.
ENDED_STARTS = (OperationStatus.FINISHED, OperationStatus.FAILED)


def run(operation_id: uuid.UUID, *, runs: Sequence[Run] = ()) -> None:
    """Execute an operation that was dispatched. The job calls this, and calls it again after a
    crash. `runs` are the earlier runs of the same job, which were cut off.

    A failed attempt is retried after a pause, by a new job, until the operation has failed
    permanently. Raises only if the metadata database fails, or if, before the work has begun, the
    worker ends or the host is found to be served from elsewhere; the queue then runs the job again.
    """
    operation = ALONE.first(operation=operation_id)
    if operation is None or operation.is_finished:
        return
    with (
        context(request=operation.request_id, operation=str(operation.id)),
        acting_as(operation.initiator),
        step_history.recording_attempt(operation, runs),
    ):
        _attempt(operation)


def _attempt(operation: Operation) -> None:
    began = time.monotonic()
    try:
        with (
            registered(operation) as attempt,
            _holding_branches_of(operation),
        ):
            # Read the row again: the lock's previous holder may have been an attempt at this same
            # operation whose worker was presumed dead too early.
            operation = _load(operation.id)
            if operation.is_finished:
                return
            refuse_if_taken(operation.project.host)
            step_history.continue_from(operation)
            if not _work(operation, attempt):
                _bring_to_safe_point(operation, attempt)
                return
    except (OperationalError, InterfaceError, HandedBack, HostTaken):
        raise
    except StartRefused as refusal:
        _fail(operation, str(refusal))
    except Exception as error:
        log.exception("attempt failed", extra=_log_fields(operation))
        figures.FAILED_ATTEMPTS.labels(operation.action).inc()
        _retry_or_fail(operation, failure_message(error))
    else:
        ms = round((time.monotonic() - began) * 1000)
        log.info("operation finished", extra={**_log_fields(operation), "ms": ms})


@contextmanager
def _holding_branches_of(operation: Operation) -> Iterator[None]:
    """Hold the operation's branches. Waiting for them is one of the operation's steps."""
    with ExitStack() as held:
        with step(step_history.LOCKING):
            held.enter_context(holding_branches(_branches_of(operation)))
        yield


def _work(operation: Operation, attempt: UnderWay) -> bool:
    """Do the operation's work and finish it. Returns False if it was cancelled."""
    if operation.status == OperationStatus.CANCELLING:
        return False
    rule = rule_of(operation)
    try:
        with patience(rule.bound, cancelled=attempt.cancelled) as attempt.patience:
            details = details_of(operation.action, operation.details)
            rule.run(Attempt(operation, details, is_awaited=partial(_is_awaited, operation)))
    except Cancelled:
        return False
    return _finish(operation)


def _log_fields(operation: Operation) -> dict[str, str | None]:
    """Return the fields of a log line about the operation, besides its id and its request's."""
    return {"action": operation.action, "endpoint": operation.endpoint_id}


def _is_awaited(operation: Operation) -> bool:
    return Operation.objects.filter(
        endpoint=operation.endpoint,
        action__in=STARTS,
        status__in=MAY_SUCCEED,
        created_at__gt=operation.created_at,
    ).exists()


def _is_superseded(operation: Operation) -> bool:
    """Return whether a later operation will suspend or delete what this operation works on. Then
    this operation is not retried, so that the later one waits for one attempt at most."""
    later = Operation.objects.filter(
        project_id=operation.project_id,
        resources__overlap=[*operation.resources, operation.project_id],
        action__in=ENDS,
        status__in=UNFINISHED,
        created_at__gt=operation.created_at,
    )
    return later.exclude(chain=operation.chain).exists()


def _finish(operation: Operation) -> bool:
    """Return False if the operation was cancelled just before its end."""
    # The end of this transaction notifies the proxy and everybody else who waits.
    with step("publishing"), locked_project(operation.project_id) as project:
        ended = _end(operation, OperationStatus.FINISHED)
        if ended:
            take_effect(operation)
            if operation.project.host_id != project.host_id:
                # What waited for the move runs on the other host.
                project.host = operation.project.host
            dispatch(project)
    return ended


def _bring_to_safe_point(operation: Operation, attempt: UnderWay) -> None:
    """Undo the half-done work of a cancelled operation, and end it.

    The caller holds its branches. The operations of its chain that were cancelled with it, none of
    which has begun, end with it. The cancel request has already changed the rows back.
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
    log.info("operation cancelled", extra=_log_fields(operation))


def _settle_later(operation: Operation, project: Project) -> None:
    """Enqueue another job for an operation that was cancelled while its attempt failed; that job
    undoes the work. If the failed attempt was itself to undo it, the job starts after a pause."""
    was_settling = operation.status == OperationStatus.CANCELLING
    pause = timedelta(seconds=SETTLE_RETRY_DELAY)
    enqueue_operation(operation, project, at=clock.now() + pause if was_settling else None)


def _retry_or_fail(operation: Operation, reason: str) -> None:
    pauses = rule_of(operation).retry_pauses
    if operation.failures_count >= len(pauses) or _is_superseded(operation):
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
        step_history.failed(operation, reason)
        fresh.steps = step_history.paused(operation, now, until=fresh.retry_at)
        fresh.save(update_fields=["failures_count", "error", "retry_at", "updated_at", "steps"])
        enqueue_operation(fresh, project, at=fresh.retry_at)


def _fail(operation: Operation, reason: str, *, attempt_failed: bool = False) -> None:
    """End the operation as failed, and with it the operations that follow it in its chain."""
    log.warning("operation failed", extra={**_log_fields(operation), "error": reason})
    step_history.failed(operation, reason)
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
                f"not run: the operation {operation.id} ({operation.action}) of the same chain "
                f"failed: {reason}"
            )
            ended = [
                one
                for one in rest
                if _end(one, OperationStatus.FAILED, error=words, because=operation.id)
            ]
            for one in (operation, *ended):
                settle_rows(one)
            dispatch(project)


def _settle_data(operation: Operation) -> None:
    """Give the branch of a failed restore its previous data back, and remove what a failed upgrade
    has made. The caller holds the branches, so if another attempt has finished the operation, that
    happened before this call."""
    has_other_data = replacement_of(operation) or rule_of(operation).undo
    if has_other_data and not _load(operation.id).is_finished:
        undo_data(operation)


def withdraw(
    operations: Sequence[Operation],
    status: OperationStatus,
    reason: str,
    *,
    because: uuid.UUID | None = None,
) -> None:
    """End operations that have not begun, so that they never run. `because` is the operation before
    them in their chain that was cancelled, if that is why. The caller holds the project's lock."""
    for operation in operations:
        _end(operation, status, error=reason, because=because)


def _end(
    operation: Operation,
    status: OperationStatus,
    *,
    error: str | None = None,
    because: uuid.UUID | None = None,
) -> bool:
    """Write a terminal status. Returns False if the operation had ended already. `because` is the
    operation whose end kept this one from beginning.

    No other function writes one, so a terminal status never changes.
    """
    now = clock.now()
    words = error and without_paths(error)
    # A cancelled operation can only end as cancelled, however much of its work was done.
    ends = UNFINISHED if status == OperationStatus.CANCELLED else MAY_SUCCEED
    steps = step_history.ended(operation, now)
    end = max(now, operation.updated_at)
    changed = Operation.objects.filter(id=operation.id, status__in=ends).update(
        status=status,
        error=words,
        failures_count=operation.failures_count,
        retry_at=None,
        updated_at=end,
        steps=steps,
        **({"not_run_because": because} if because else {}),
    )
    if changed:
        seconds = max(0.0, (now - operation.created_at).total_seconds())
        transaction.on_commit(
            partial(figures.note_operation, operation.action, status.value, seconds)
        )
        if operation.action == Action.START_COMPUTE and status in ENDED_STARTS and not because:
            has_failed = status == OperationStatus.FAILED
            transaction.on_commit(
                partial(note_start, str(operation.endpoint_id), has_failed=has_failed)
            )
    if changed and not _needs_no_event(operation, status):
        record(operation_ended(operation, status, words, end))
    return changed == 1


def _needs_no_event(operation: Operation, status: OperationStatus) -> bool:
    """Return whether the end needs no event: a check that finds no fault has changed nothing, and
    there are thousands of checks a day."""
    return operation.initiator_type == ActorType.CHECK and status == OperationStatus.FINISHED


def _load(operation_id: uuid.UUID) -> Operation:
    """Read the operation with all rows that its work and its end need."""
    operation = WHOLE.first(operation=operation_id)
    if operation is None:
        raise Operation.DoesNotExist
    project, branch, endpoint = operation.project, operation.branch, operation.endpoint
    if branch is not None:
        branch.project = project
    if endpoint is not None:
        endpoint.project = endpoint.branch.project = project
    return operation


def _branches_of(operation: Operation) -> list[str]:
    if operation.project_id in operation.resources:
        branches = Branch.objects.filter(project_id=operation.project_id)
        return list(branches.values_list("id", flat=True))
    return [held for held in operation.resources if held.startswith("br-")]
