"""Runs operations that were handed over (`scheduling`), and ends them: run, finish, retry, fail.

Called by the jobs, in a worker. Every transaction here begins by locking the project's row
(`locks`), and what needs a branch on disk has locked that before.
"""

import logging
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

from django.db import InterfaceError, OperationalError
from django.utils import timezone

from controlplane.actors import ActorType, acting_as
from controlplane.compute.filesystem import lock_branches
from controlplane.compute.patience import patience
from controlplane.events.changes import operation_ended
from controlplane.events.recording import record
from controlplane.logs import context
from controlplane.models import (
    UNFINISHED,
    Branch,
    Operation,
    OperationStatus,
)
from controlplane.operations.actions import ENDS, STARTS, details_of, rule_of
from controlplane.operations.effects import settle_compute, settle_rows, take_effect
from controlplane.operations.locks import locked_project
from controlplane.operations.queue import enqueue_operation
from controlplane.operations.scheduling import dispatch
from controlplane.operations.under_way import HandedBack, holding_branches, noted
from controlplane.operations.words import without_paths, words_of
from controlplane.operations.work import Attempt, Refused

log = logging.getLogger(__name__)


def run(operation_id: uuid.UUID) -> None:
    """Carry out an operation that was handed over; called by the job, again after a crash.

    What fails is tried again after a pause, as a job of its own, until the operation has
    failed for good. Raises only where the metadata database fails us, or where the worker ends
    before the work has begun: then the job engine calls again.
    """
    operation = _load(operation_id)
    if operation.is_finished:
        return
    with (
        context(request=operation.request_id, operation=str(operation.id)),
        acting_as(operation.initiator),
    ):
        _attempt(operation)


def _attempt(operation: Operation) -> None:
    began = time.monotonic()
    try:
        with (
            noted(operation) as attempt,
            holding_branches(_branches_of(operation)),
        ):
            # The lock's holder may have been this same operation, taken for dead too early.
            operation = _load(operation.id)
            if operation.is_finished:
                return
            rule = rule_of(operation)
            with patience(rule.bound) as attempt.patience:
                rule.run(_attempt_at(operation))
            _finish(operation)
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
        status__in=UNFINISHED,
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


def _finish(operation: Operation) -> None:
    with locked_project(operation.project_id) as project:
        if _end(operation, OperationStatus.FINISHED):
            take_effect(operation)
            dispatch(project)


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
        now = timezone.now()
        fresh.failures_count += 1
        fresh.error = without_paths(reason)
        fresh.retry_at = now + pause
        fresh.updated_at = max(now, fresh.updated_at)
        fresh.save(update_fields=["failures_count", "error", "retry_at", "updated_at"])
        enqueue_operation(fresh, project, at=fresh.retry_at)


def _fail(operation: Operation, reason: str, *, attempt_failed: bool = False) -> None:
    """End the operation as failed, and what comes after it in its chain with it."""
    log.warning("operation failed", extra={**_described(operation), "error": reason})
    with lock_branches(*_branches_of(operation)):
        rest = list(
            Operation.objects.filter(
                chain=operation.chain, status=OperationStatus.SCHEDULING
            ).order_by("created_at")
        )
        settle_compute(operation, rest)
        with locked_project(operation.project_id) as project:
            operation.failures_count += attempt_failed
            if not _end(operation, OperationStatus.FAILED, error=reason):
                return
            for later in rest:
                _end(
                    later,
                    OperationStatus.FAILED,
                    error=f"not run: {operation.action} before it failed: {reason}",
                )
            for one in (operation, *rest):
                settle_rows(one)
            dispatch(project)


def cancel(operations: Sequence[Operation], reason: str) -> None:
    """Fail operations that were not handed over yet. The caller holds the project's lock."""
    for operation in operations:
        if operation.status == OperationStatus.SCHEDULING:
            _end(operation, OperationStatus.FAILED, error=reason)


def _end(operation: Operation, status: OperationStatus, *, error: str | None = None) -> bool:
    """Write a terminal status; False where the operation had ended already.

    The only place that does, so a terminal status never changes.
    """
    now = timezone.now()
    words = error and without_paths(error)
    changed = Operation.objects.filter(id=operation.id, status__in=UNFINISHED).update(
        status=status,
        error=words,
        failures_count=operation.failures_count,
        retry_at=None,
        updated_at=max(now, operation.updated_at),
    )
    if changed and not _is_no_news(operation, status):
        record(operation_ended(operation, status, words))
    return changed == 1


def _is_no_news(operation: Operation, status: OperationStatus) -> bool:
    """A check that finds all well has changed nothing, and there are thousands a day."""
    return operation.initiator_type == ActorType.CHECK and status == OperationStatus.FINISHED


def _load(operation_id: uuid.UUID) -> Operation:
    return Operation.objects.select_related(
        "project__region", "branch__project__account", "endpoint__branch"
    ).get(id=operation_id)


def _branches_of(operation: Operation) -> list[str]:
    if operation.project_id in operation.resources:
        branches = Branch.objects.filter(project_id=operation.project_id)
        return list(branches.values_list("id", flat=True))
    return [held for held in operation.resources if held.startswith("br-")]
