"""Moves projects to other hosts of their region, for operators: one project (`move`), or all of a
host that is to be emptied (`empty_host`), which a round goes on with (`go_on_emptying`).

Which host a project lives on is changed only here (`give_to_host`, `set_host`). A worker acts only
for the projects of its host (`own_host`), and proxies hear of the change in the same transaction
(migration 0030). So this one row decides which host owns the project's branches.
"""

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from django.db import transaction
from django.db.models import Count, Exists, Max, OuterRef, QuerySet

from controlplane import clock
from controlplane.database.version import perch_version
from controlplane.events.changes import project_updated
from controlplane.events.recording import differences, record
from controlplane.models import (
    HANDED_OVER,
    UNFINISHED,
    Action,
    Endpoint,
    EndpointState,
    HistoryChain,
    Host,
    Lane,
    Operation,
    OperationStatus,
    Project,
    RequestKind,
)
from controlplane.operations.details import MoveProjectDetails
from controlplane.operations.engine.effects import pending_state
from controlplane.operations.engine.scheduling import Step, schedule, unfinished
from controlplane.operations.locks import apart, locked_project
from controlplane.operations.queue.jobs import move_job
from controlplane.services.errors import Conflict, HostAway, NotFound, ServiceError, Unprocessable
from controlplane.services.hosts import find_host
from controlplane.services.rules.placement import versions_of, weighted_room

log = logging.getLogger(__name__)

# How long a drain remembers that a project's move has failed, and how long it waits at most until
# it tries again: 0 minutes after the first failure, then 1, 3, 7, …
FAILURE_RETENTION = timedelta(days=1)
MAX_RETRY_DELAY = timedelta(hours=1)
# Set when a project has been given to another host by this process.
has_moved = threading.Event()


class HostNotReady(Exception):
    """The host cannot own the project; the message says why."""


@dataclass
class EmptyingResult:
    """What emptying a host has begun: for each project that is being moved, the host that it goes
    to; for each other one, why it stays."""

    moved: dict[str, str] = field(default_factory=dict)
    stay: dict[str, str] = field(default_factory=dict)


def move(project_id: str, *, to: str, lane: Lane | None = None) -> list[Operation]:
    """Schedule the move of the project to the host `to`. Returns the operations: the move, in which
    active endpoints are stopped at its end, and their starts on the other host.

    Raises NotFound, Conflict, Unprocessable, HostAway.
    """
    try:
        with locked_project(project_id) as project:
            if project.deleted_at is not None:
                raise NotFound(f"unknown project {project_id}")
            earlier = unfinished(project.id)
            if other := next((o for o in earlier if o.action == Action.MOVE_PROJECT), None):
                raise Conflict(f"the project is being moved by the operation {other.id}")
            _refuse(project, find_host(to))
            starts = [
                Step(Action.START_COMPUTE, branch=one.branch, endpoint=one)
                for one in _active(project, earlier)
            ]
            moves = Step(Action.MOVE_PROJECT, holds_project=True, details=MoveProjectDetails(to=to))
            return schedule(project, [moves, *starts], RequestKind.MOVE_PROJECT, lane=lane)
    except Project.DoesNotExist as error:
        raise NotFound(f"unknown project {project_id}") from error


def empty_host(host: Host) -> EmptyingResult:
    """Schedule the move of every project of the host to the others of its region, each to the one
    with the most room."""
    return _empty(host, list(Project.objects.filter(host=host, deleted_at=None).order_by("id")))


def go_on_emptying(host: Host) -> None:
    """If the host is drained, schedule the moves of projects that are on it again: their moves have
    failed, or no other host could have them until now. A project whose move fails again and again
    is tried less and less often. A round of its worker."""
    of_region = Host.objects.filter(region_id=host.region_id)
    others = of_region.filter(draining=False).exclude(id=host.id)
    if not of_region.filter(id=host.id, draining=True).exists() or not others.exists():
        return
    moving = Operation.objects.filter(
        project=OuterRef("id"), action=Action.MOVE_PROJECT, status__in=UNFINISHED
    )
    left = Project.objects.filter(~Exists(moving), host=host, deleted_at=None)
    resting = _resting(left)
    result = _empty(host, [one for one in left.order_by("id") if one.id not in resting])
    if result.moved:
        fields = {"moved": len(result.moved), "stay": len(result.stay)}
        log.info("emptying goes on", extra=fields)


def _resting(projects: QuerySet[Project]) -> set[str]:
    """The ids of those whose moves have failed so often that the next one has to wait."""
    now = clock.now()
    failures = Operation.objects.filter(
        project__in=projects,
        action=Action.MOVE_PROJECT,
        status=OperationStatus.FAILED,
        updated_at__gt=now - FAILURE_RETENTION,
    )
    counted = failures.values_list("project_id").annotate(Count("id"), Max("updated_at"))
    return {
        project_id
        for project_id, count, last in counted
        if now < last + min(MAX_RETRY_DELAY, timedelta(minutes=2 ** min(count - 1, 10) - 1))
    }


def _empty(host: Host, projects: Sequence[Project]) -> EmptyingResult:
    result, given = EmptyingResult(), Counter[str]()
    others = list(Host.objects.filter(region_id=host.region_id).exclude(id=host.id))
    for project in projects:
        why = "the region has no other host"
        rooms = {one.id: weighted_room(one, 0) - given[one.id] / len(projects) for one in others}
        for to in sorted(others, key=lambda one: rooms[one.id], reverse=True):
            why = "it is busy, or the log says why"
            with apart(project.id):
                try:
                    move(project.id, to=to.id, lane=Lane.UPKEEP)
                except ServiceError as error:
                    why = error.message
                    continue
                given[to.id] += 1
                result.moved[project.id] = to.id
                break
        if project.id not in result.moved:
            result.stay[project.id] = why
    return result


def _refuse(project: Project, host: Host) -> None:
    """Raise the reason for which the project cannot be moved to the host."""
    if host.region_id != project.region_id:
        raise Unprocessable(
            f'the host "{host.id}" belongs to the region "{host.region_id}", and the project to '
            f'"{project.region_id}"',
            fields=["host_id"],
        )
    if host.id == project.host_id:
        raise Conflict(f'the project lives on the host "{host.id}" already')
    if host.draining:
        raise Conflict(f'the host "{host.id}" is being drained: `hosts resume` ends that')
    if host.version != perch_version() or project.host.version != perch_version():
        raise Conflict(
            f'the hosts "{project.host_id}" and "{host.id}" must both run this version of Perch, '
            f"{perch_version()}"
        )
    if host.is_away or host.silent_processes():
        raise HostAway(f'the host "{host.id}" does not answer; try again')
    if not host.peer_certificate:
        raise Conflict(f'the proxy of the host "{host.id}" accepts nothing from other hosts')
    if project.pg_version not in versions_of([host]):
        raise Conflict(f'the host "{host.id}" does not have Postgres {project.pg_version}')
    needs_pooler = Endpoint.objects.filter(
        project=project, deleted_at=None, pooler_enabled=True
    ).exists()
    if needs_pooler and not host.pooling_available:
        raise Conflict(f'the host "{host.id}" has no PgBouncer, which endpoints of the project use')
    if project.blocks_outbound and host.outbound_unfiltered:
        raise Conflict(
            f'the host "{host.id}" cannot block outgoing connections, as the project wants: '
            f"{host.outbound_unfiltered}"
        )
    if host.is_full:
        raise Conflict(f'the disk of the host "{host.id}" is full')


def _active(project: Project, earlier: Sequence[Operation]) -> Iterator[Endpoint]:
    """The endpoints that are active once the unfinished operations have ended."""
    for endpoint in Endpoint.objects.filter(project=project, deleted_at=None).order_by("id"):
        if (pending_state(endpoint, earlier) or endpoint.current_state) == EndpointState.ACTIVE:
            yield endpoint


def give_to_host(project: Project, host_id: str, *, served_by: str, by: Operation) -> None:
    """Make the host the one that the project lives on. The caller holds the project's lock, no
    process works on the project's branches, and the state directory with the identity `served_by`
    has all of their data durably. Raises HostNotReady if another one serves the host."""
    host = Host.objects.select_for_update().filter(id=host_id).first()
    if host is None or host.region_id != project.region_id or host.state_id != served_by:
        raise HostNotReady(f'the host "{host_id}" has lost the data that was moved there')
    changes = differences({"host_id": project.host_id}, {"host_id": host.id})
    project.host, project.updated_at = host, clock.now()
    project.save(update_fields=["host", "updated_at"])
    # The host has no copies in the store yet: its rounds make them.
    HistoryChain.objects.filter(branch__project=project).update(stored_at=None)
    if changes:
        record(project_updated(project, changes, [by]))
    transaction.on_commit(has_moved.set)


def set_host(project: Project, host: Host) -> None:
    """Let the project of a lost host live on another host of its region from now on.

    The caller holds the project's lock, knows that its computes are gone, and sees to its data.
    Jobs that wait move to the new host's queues.
    """
    project.host = host
    project.updated_at = max(clock.now(), project.updated_at)
    project.save(update_fields=["host", "updated_at"])
    waiting = Operation.objects.filter(
        project=project, status__in=HANDED_OVER, dispatched_at__isnull=False
    )
    for operation in waiting:
        move_job(operation, project)
