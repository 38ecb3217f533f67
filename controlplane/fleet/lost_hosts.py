"""Declares a host lost, and gives its projects to other hosts of its region, which restore them
from the store.

A lost host is shut out first: its row gets another `state_id`, so that neither its worker nor its
proxy serves anything if it comes back (`operations.own_host`). Then each project moves in a
transaction of its own: from its end on, the project lives on the other host, which has an operation
for each of its branches. If this is interrupted, the next call continues.
"""

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Exists, F, Max, OuterRef, QuerySet

from controlplane import clock
from controlplane.actors import PLATFORM, acting_as
from controlplane.database.version import perch_version
from controlplane.events.changes import project_host_lost
from controlplane.events.recording import record
from controlplane.fleet.moves import set_host
from controlplane.models import (
    CATALOG_UNREAD,
    UNFINISHED,
    Action,
    Branch,
    BranchState,
    Endpoint,
    EndpointState,
    HistoryChain,
    Host,
    Job,
    Lane,
    Operation,
    OperationStatus,
    Project,
)
from controlplane.models.host import is_recent
from controlplane.operations.details import RestoreFromStoreDetails
from controlplane.operations.engine.execution import withdraw
from controlplane.operations.engine.replacing import give_up_replacing
from controlplane.operations.engine.scheduling import Step, dispatch, schedule
from controlplane.operations.locks import apart, locked_project
from controlplane.operations.states import enter
from controlplane.services.errors import Conflict
from controlplane.services.hosts import find_host
from controlplane.services.rules.placement import Placing

log = logging.getLogger(__name__)

# A host gives a sign of life so often: it may have lived for so long after the last one.
SIGN_INTERVAL = timedelta(seconds=2)


@dataclass(frozen=True)
class LostHost:
    """What became of the projects of a lost host."""

    host: Host
    # How many other hosts have taken over.
    taken: int
    # How many stay, because the store has no copy of any of their branches.
    without_copy: int
    # How many stay, because no other host has room and their version of Postgres.
    without_place: int


def declare_lost(name: str) -> LostHost:
    """Declare the host lost for good, and place its projects on other hosts of the region. Raises
    NotFound, and Conflict, which changes nothing, if it is alive, or if nothing could be restored.
    """
    host = find_host(name)
    _refuse_alive(host)
    takers = _takers(host)
    movable = _movable(host)
    if host.living and not movable.exists():
        raise Conflict(
            f"no project of {host.id} has a copy in the store, so none can be restored on another "
            "host. Bring the machine back, or restore the host from a backup"
        )
    _shut_out(host)
    return take_over(host, takers)


def take_over(host: Host, takers: Sequence[Host]) -> LostHost:
    """Place the projects of the lost host that the store has on these hosts, those first that were
    used last."""
    placing, taken, without_place = Placing(takers), 0, 0
    movable = _movable(host).annotate(used_at=Max("endpoints__last_active"))
    for project in movable.order_by(F("used_at").desc(nulls_last=True), "id"):
        with apart(project.id):
            place = placing.choose(project)
            if place is None:
                without_place += 1
            elif _give(project.id, host, place):
                taken += 1
    left = Project.objects.filter(host=host, deleted_at=None).count()
    log.warning("projects of a lost host placed", extra={"host": host.id, "projects": taken})
    return LostHost(host, taken, left - without_place, without_place)


def continue_with_lost(region_id: str) -> None:
    """Continue with the lost hosts of the region whose projects were not all placed, because that
    was interrupted or because there was no room."""
    for host in Host.objects.filter(region_id=region_id, lost_at__isnull=False):
        if not _movable(host).exists():
            continue
        try:
            takers = _takers(host)
        except Conflict:
            continue
        with apart(host.id), transaction.atomic():
            # One worker of the region does it.
            mine = Host.objects.select_for_update(skip_locked=True, no_key=True)
            if mine.filter(id=host.id, lost_at__isnull=False).first() is None:
                continue
            take_over(host, takers)


def _refuse_alive(host: Host) -> None:
    for process, seen_at in (("worker", host.worker_seen_at), ("proxy", host.proxy_seen_at)):
        if is_recent(seen_at):
            raise Conflict(
                f"the {process} of {host.id} still runs: the host is not lost. Nothing was changed"
            )


def _takers(host: Host) -> list[Host]:
    """The other hosts of the region that can restore from the store. Raises Conflict."""
    if not host.history_store:
        raise Conflict(
            f"{host.id} has copied nothing to a store (its worker had no PERCH_HISTORY_STORE), so "
            "its projects cannot be restored on another host. Nothing was changed"
        )
    others = Host.objects.filter(region=host.region_id, lost_at=None).exclude(id=host.id)
    alive = [
        other
        for other in others.order_by("id")
        if not other.silent_processes()
        and not other.draining
        and other.version == perch_version()
        and other.pg_version is not None
    ]
    if not alive:
        raise Conflict(
            f'the region "{host.region_id}" has no other host that runs, takes new projects and '
            "has this version of Perch. Nothing was changed"
        )
    with_store = [other for other in alive if other.history_store]
    if not with_store:
        names = ", ".join(other.id for other in alive)
        raise Conflict(
            f"the workers of the other hosts ({names}) have no PERCH_HISTORY_STORE, so they cannot "
            "restore anything. Nothing was changed"
        )
    return with_store


def _movable(host: Host) -> "QuerySet[Project]":
    """The host's projects of which the store has at least one branch."""
    stored = HistoryChain.objects.filter(
        branch__project=OuterRef("id"), branch__deleted_at=None, stored_at__isnull=False
    )
    return Project.objects.filter(Exists(stored), host=host, deleted_at=None)


def _shut_out(host: Host) -> None:
    """Shut out the host's processes for good. Raises Conflict if one has come back meanwhile."""
    with transaction.atomic():
        fresh = Host.objects.select_for_update(no_key=True).get(id=host.id)
        _refuse_alive(fresh)
        if fresh.lost_at is not None:
            return
        fresh.lost_at = clock.now()
        fresh.lost_state_id = fresh.state_id or ""
        fresh.state_id, fresh.state_place = str(uuid.uuid4()), None
        fresh.draining = True
        fresh.save(
            update_fields=["lost_at", "lost_state_id", "state_id", "state_place", "draining"]
        )
    host.lost_at, host.lost_state_id = fresh.lost_at, fresh.lost_state_id
    log.warning("host declared lost", extra={"host": host.id})


def _give(project_id: str, lost: Host, place: Host) -> bool:
    """Let the project live on the other host. Returns False if it is not on the lost one any
    more."""
    with locked_project(project_id) as project:
        if project.host_id != lost.id or project.deleted_at is not None:
            return False
        died_at = max(filter(None, (lost.worker_seen_at, lost.proxy_seen_at)), default=clock.now())
        branches = list(_branches_with_data(project))
        pending = {branch.id: _pending_restore(branch) for branch in branches}
        ran = {one.id: pending[one.id] or _what_ran(one, lost, died_at) for one in branches}
        _end_operations(project)
        active = {"deleted_at": None, "current_state": EndpointState.ACTIVE}
        for endpoint in Endpoint.objects.filter(project=project, **active):
            at = max(died_at, endpoint.started_at or died_at)
            enter(project, endpoint, EndpointState.IDLE, now=at, reason="its host was lost")
        HistoryChain.objects.filter(branch__project=project).delete()
        Branch.objects.filter(project=project).update(history_bytes=0)
        set_host(project, place)
        operations = []
        for branch in branches:
            if pending[branch.id] is None:
                others = [one for one in branch.copied_by if one != lost.lost_state_id]
                branch.copied_by = [lost.lost_state_id, *others]
            branch.catalog_mark = CATALOG_UNREAD
            branch.save(update_fields=["copied_by", "catalog_mark"])
            step = Step(Action.RESTORE_FROM_STORE, branch=branch, details=ran[branch.id])
            # By the platform, so that it cannot be cancelled.
            with acting_as(PLATFORM):
                operations += schedule(project, [step], lane=Lane.UPKEEP)
        dispatch(project)
        record(project_host_lost(project, lost, operations))
    return True


def _branches_with_data(project: Project) -> "QuerySet[Branch]":
    """The branches that had data on the lost host, those first that were used last."""
    doomed = Operation.objects.filter(
        branch=OuterRef("id"), action=Action.DELETE_TIMELINE, status__in=UNFINISHED
    )
    ready = Branch.objects.filter(
        ~Exists(doomed),
        project=project,
        deleted_at=None,
        current_state=BranchState.READY,
        is_time_travel=False,
    )
    used = ready.annotate(used_at=Max("endpoints__last_active"))
    return used.order_by(F("used_at").desc(nulls_last=True), "-default", "created_at", "id")


def _pending_restore(branch: Branch) -> RestoreFromStoreDetails | None:
    """The details of the restore that the branch waits for on the host: it has not run there, and
    what the host may have copied of it is no newer. None if it waits for none."""
    pending = Operation.objects.filter(
        branch=branch, action=Action.RESTORE_FROM_STORE, status__in=UNFINISHED
    ).first()
    return RestoreFromStoreDetails.from_json(pending.details) if pending else None


def _what_ran(branch: Branch, lost: Host, died_at: datetime) -> RestoreFromStoreDetails:
    """Note until when commits may have been made on the branch."""
    endpoints = Endpoint.objects.filter(branch=branch)
    stops = [
        died_at + SIGN_INTERVAL if one.current_state == EndpointState.ACTIVE else one.suspended_at
        for one in endpoints
    ]
    ran_until = max(filter(None, stops), default=None)
    # What a branch whose chain has ended wrote since is in no log.
    newest = HistoryChain.objects.filter(branch=branch, ended_at=None).order_by("-number").first()
    is_complete = newest and ran_until and newest.updated_at > ran_until
    return RestoreFromStoreDetails(
        lost_host=lost.id,
        ran_until=ran_until.isoformat() if ran_until else None,
        chain=newest.number if newest else None,
        log_end=newest.last_lsn if newest and is_complete else None,
        reset_at=branch.last_reset_at.isoformat() if branch.last_reset_at else None,
    )


def _end_operations(project: Project) -> None:
    """End what was to be done on the lost host, except for deletions: these have nothing left to
    remove, and are done on the other host."""
    unfinished: list[Any] = list(
        Operation.objects.filter(project=project, status__in=UNFINISHED).order_by("created_at")
    )
    Job.objects.filter(subject__in=[str(one.id) for one in unfinished]).delete()
    for operation in unfinished:
        if operation.action == Action.DELETE_TIMELINE:
            operation.status, operation.dispatched_at = OperationStatus.SCHEDULING, None
            operation.save(update_fields=["status", "dispatched_at"])
            continue
        withdraw([operation], OperationStatus.CANCELLED, "its host was lost")
        give_up_replacing(operation)
