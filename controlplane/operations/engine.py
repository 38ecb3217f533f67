"""The operation engine: schedule, dispatch, run, finish, fail.

An operation is a row first and a job second. One transaction writes the resource's
change, its operations and the queue's job. Every transaction here begins by locking the
project's row, so what one sees of a project's unfinished operations stays true until it
commits; different projects never wait for each other.
"""

import logging
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import psycopg
from django.db import InterfaceError, OperationalError
from django.utils import timezone

from controlplane.compute.filesystem import LockTimeout, lock_branches
from controlplane.compute.integrity import DataDamaged
from controlplane.compute.patience import OutOfPatience, patience
from controlplane.compute.process import StartFailed, StopFailed
from controlplane.logs import context, current
from controlplane.models import (
    UNFINISHED,
    Action,
    Branch,
    Endpoint,
    Lane,
    Operation,
    OperationStatus,
    Project,
)
from controlplane.operations.actions import ACTIONS, ENDS, STARTS, details_of, rule_of
from controlplane.operations.details import Details
from controlplane.operations.effects import settle_compute, settle_rows, take_effect
from controlplane.operations.lanes import enter_lane, move_ahead
from controlplane.operations.locks import locked_project
from controlplane.operations.queue import enqueue_operation
from controlplane.operations.under_way import HandedBack, holding_branches, noted
from controlplane.operations.work import Attempt, Refused

log = logging.getLogger(__name__)

# How many of a project's operations are handed over at once, in each lane. The others stay
# `scheduling`, and follow in order as these end.
MOST_OF_A_PROJECT = 8

# Exceptions whose words mean something to the user of the endpoint.
TELLING = (
    *(StartFailed, StopFailed, DataDamaged, LockTimeout, OutOfPatience),
    *(psycopg.Error, OSError),
)


class RegionAway(Exception):
    """Nobody is there who would run the operations. Nothing was written: to try again is safe."""


@dataclass(frozen=True)
class Step:
    """One operation to be scheduled."""

    action: Action
    branch: Branch | None = None
    endpoint: Endpoint | None = None
    # Branches it works on beyond its own.
    also_holds: Sequence[Branch] = ()
    holds_project: bool = False
    # Of the class that the table of actions names; None is as good as its defaults.
    details: Details | None = None

    def __post_init__(self) -> None:
        expected = ACTIONS[self.action].details
        assert self.details is None or type(self.details) is expected, self

    @property
    def resources(self) -> list[str]:
        held = [self.endpoint, self.branch, *self.also_holds]
        return [row.id for row in held if row is not None]


def schedule(
    project: Project, steps: Sequence[Step], *, lane: Lane | None = None
) -> list[Operation]:
    """Write the steps as a chain of operations and dispatch what can run.

    All of a chain is of one lane: `lane`, else the least urgent that the table of actions has
    for its steps.

    The caller holds the project's lock. The first is `running` unless an earlier
    unfinished operation holds what it needs; the rest are `scheduling` (specification,
    section 4, rules 1, 2 and 7). Raises RegionAway.
    """
    if project.region.is_away:
        raise RegionAway(
            f'the region "{project.region_id}" does not answer, so nothing can be done there now; '
            "try again"
        )
    chain = uuid.uuid4()
    lane = lane or max((ACTIONS[step.action].lane for step in steps), key=list(Lane).index)
    created_at = _next_created_at(project)
    operations = [
        Operation(
            project=project,
            branch=step.branch,
            endpoint=step.endpoint,
            action=step.action,
            status=OperationStatus.SCHEDULING,
            chain=chain,
            lane=lane,
            resources=[project.id] if step.holds_project else step.resources,
            details=step.details.as_json() if step.details else {},
            request_id=current("request"),
            created_at=created_at + timedelta(microseconds=position),
            updated_at=created_at + timedelta(microseconds=position),
        )
        for position, step in enumerate(steps)
    ]
    Operation.objects.bulk_create(operations)
    dispatched = {operation.id: operation for operation in dispatch(project)}
    return [dispatched.get(operation.id, operation) for operation in operations]


def dispatch(project: Project) -> list[Operation]:
    """Hand over every operation that no earlier unfinished one stands in the way of, as far as
    the project's share of its lane allows.

    The caller holds the project's lock. Returns what was handed over.
    """
    operations = unfinished(project.id)
    move_ahead(project, operations)
    under_way = Counter(
        operation.lane for operation in operations if operation.status == OperationStatus.RUNNING
    )
    held: set[str] = set()
    handed_over = []
    now = timezone.now()
    for operation in operations:
        if (
            operation.status == OperationStatus.SCHEDULING
            and not _stands_behind(operation, held)
            and under_way[operation.lane] < MOST_OF_A_PROJECT
        ):
            operation.status = OperationStatus.RUNNING
            operation.dispatched_at = now
            operation.updated_at = max(now, operation.updated_at)
            operation.save(update_fields=["status", "dispatched_at", "updated_at"])
            enqueue_operation(operation, project)
            under_way[operation.lane] += 1
            handed_over.append(operation)
        held.update(operation.resources)
    return handed_over


def hurry(project: Project, operations: Sequence[Operation], lane: Lane) -> None:
    """Have the unfinished operations, and what they stand behind, run in `lane` at least: they
    are what somebody in it has come to wait for. The caller holds the project's lock."""
    behind = [operation for operation in operations if lane.is_ahead_of(operation.lane)]
    for operation in behind:
        enter_lane(project, operation, lane)
    if behind:
        dispatch(project)


def unfinished(project_id: str) -> Sequence[Operation]:
    """The project's unfinished operations, oldest first."""
    return list(
        Operation.objects.filter(project_id=project_id, status__in=UNFINISHED).order_by(
            "created_at"
        )
    )


def run(operation_id: uuid.UUID) -> None:
    """Carry out an operation that was handed over; called by the job, again after a crash.

    What fails is tried again after a pause, as a job of its own, until the operation has
    failed for good. Raises only where the metadata database fails us, or where the worker ends
    before the work has begun: then the job engine calls again.
    """
    operation = _load(operation_id)
    if operation.is_finished:
        return
    with context(request=operation.request_id, operation=str(operation.id)):
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
        _retry_or_fail(operation, _words_of(error))
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


def _words_of(error: Exception) -> str:
    """Why an attempt failed, for the user: what Postgres or the host said, not our own slips."""
    if isinstance(error, TELLING) and str(error):
        return str(error)
    return f"internal error ({type(error).__name__}); the worker's log has the details"


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
        fresh.error = reason
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
    changed = Operation.objects.filter(id=operation.id, status__in=UNFINISHED).update(
        status=status,
        error=error,
        failures_count=operation.failures_count,
        retry_at=None,
        updated_at=max(now, operation.updated_at),
    )
    return changed == 1


def _load(operation_id: uuid.UUID) -> Operation:
    return Operation.objects.select_related("project__region", "branch", "endpoint__branch").get(
        id=operation_id
    )


def _stands_behind(operation: Operation, held: set[str]) -> bool:
    """Whether an earlier operation holds something of this one's."""
    if operation.project_id in held:
        return True
    if operation.project_id in operation.resources:
        return bool(held)
    return not held.isdisjoint(operation.resources)


def _branches_of(operation: Operation) -> list[str]:
    if operation.project_id in operation.resources:
        branches = Branch.objects.filter(project_id=operation.project_id)
        return list(branches.values_list("id", flat=True))
    return [held for held in operation.resources if held.startswith("br-")]


def _next_created_at(project: Project) -> datetime:
    """Now, or just after the project's newest operation: the list's cursor is the time alone."""
    newest = (
        Operation.objects.filter(project=project)
        .order_by("-created_at")
        .values_list("created_at", flat=True)
        .first()
    )
    now = timezone.now()
    return max(now, newest + timedelta(microseconds=1)) if newest else now
