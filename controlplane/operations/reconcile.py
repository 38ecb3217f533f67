"""Compares what the database says with what runs on this host, and mends the difference.

A compute that died becomes `idle`; a Postgres that belongs to nothing is stopped; an
operation whose job was lost is handed over again.
"""

import logging
from collections.abc import Set
from contextlib import suppress
from datetime import datetime

from django.db import InterfaceError, OperationalError, connection

from controlplane import clock
from controlplane.actors import PLATFORM
from controlplane.compute import compute
from controlplane.compute.account_processes import end_stray_accounts
from controlplane.compute.filesystem import LockTimeout, forget_lock, lock_branches
from controlplane.compute.process import StopFailed
from controlplane.models import (
    CATALOG_UNREAD,
    HANDED_OVER,
    UNFINISHED,
    Branch,
    Endpoint,
    EndpointState,
    Operation,
    Region,
)
from controlplane.operations.locks import locked_project
from controlplane.operations.queue import enqueue_operation
from controlplane.operations.states import enter

log = logging.getLogger(__name__)


def reconcile_host(region: Region) -> None:
    """Mend every difference between the region's rows and the processes of this host.

    A compute that is gone counts as having run until the last look: not for as long as the host
    was down.
    """
    looking_at, all_seen = clock.now(), True
    says_active = dict(
        Endpoint.objects.filter(
            project__region=region, deleted_at=None, current_state=EndpointState.ACTIVE
        ).values_list("branch_id", "id")
    )
    runs = compute.running_branches()
    for branch_id in says_active.keys() | runs.keys():
        # Where nobody should run, what a dead Postgres left is a difference too.
        if branch_id not in says_active or says_active[branch_id] != runs.get(branch_id):
            try:
                reconcile_branch(branch_id, timeout=0)
            except LockTimeout:
                all_seen = False  # an operation works on it; it is looked at again soon
            except StopFailed as error:
                log.error("leftovers not ended", extra={"branch": branch_id, "error": str(error)})
            except (OperationalError, InterfaceError):
                raise
            except Exception:
                # What a stranger has made of one branch must not keep this from all others.
                log.exception("branch not reconciled", extra={"branch": branch_id})
    if all_seen:
        Region.objects.filter(id=region.id).update(computes_seen_at=looking_at)
    _forget_deleted(compute.endpoints_with_sockets() - {*says_active.values(), *runs.values()})


def reconcile_branch(branch_id: str, *, timeout: float = 60.0) -> None:
    """Mend the difference on one branch, unless an operation is about to.

    Raises LockTimeout where other work holds the branch for `timeout` seconds.
    """
    with lock_branches(branch_id, timeout=timeout):
        branch = Branch.objects.filter(id=branch_id).first()
        runs_for = compute.running_endpoint(branch_id)
        if branch is None:
            # Not of this database: another Perch may share the host, never the directory.
            log.warning("stopping a compute of no branch", extra={"branch": branch_id})
            compute.stop(branch_id)
            forget_lock(branch_id)
            return
        with locked_project(branch.project_id) as project:
            if Operation.objects.filter(
                project_id=branch.project_id,
                status__in=UNFINISHED,
                resources__overlap=[branch_id, branch.project_id],
            ).exists():
                return
            endpoint = Endpoint.objects.filter(branch_id=branch_id, deleted_at=None).first()
            if endpoint and endpoint.current_state == EndpointState.ACTIVE:
                if runs_for == endpoint.id:
                    return
                log.warning("compute gone, endpoint idle", extra={"endpoint": endpoint.id})
                # Whoever has come to look: nobody but the platform has found it.
                enter(
                    project,
                    endpoint,
                    EndpointState.IDLE,
                    now=_ended_at(endpoint, project.region.computes_seen_at),
                    reason="its compute has ended by itself",
                    actor=PLATFORM,
                )
                # What SQL has set last is known once it is read: see `availability`.
                Branch.objects.filter(id=branch_id).update(catalog_mark=CATALOG_UNREAD)
        if runs_for:
            fields = {"branch": branch_id, "endpoint": runs_for}
            log.warning("stopping a compute that should not run", extra=fields)
        # Of one that died its pooler is left, and would keep its clients waiting.
        compute.stop(branch_id)
        if branch.deleted_at is not None:
            forget_lock(branch_id)


def end_strays(region: Region) -> None:
    """End what runs on this host under the accounts of branches that do not run, or are gone."""
    end_stray_accounts()


def _ended_at(endpoint: Endpoint, seen_at: datetime | None) -> datetime:
    """When a compute that is gone has ended, as far as anybody knows: it was seen at `seen_at`,
    unless it has started since."""
    now = clock.now()
    return min(now, max(filter(None, (seen_at, endpoint.started_at)), default=now))


def _forget_deleted(endpoint_ids: Set[str]) -> None:
    """Remove what is left on this host of those of the endpoints that exist no more."""
    if not endpoint_ids:
        return
    living = Endpoint.objects.filter(id__in=endpoint_ids, deleted_at=None)
    for endpoint_id in endpoint_ids - set(living.values_list("id", flat=True)):
        try:
            if endpoint_id.startswith(compute.READER):
                _forget_reader(endpoint_id)
            else:
                compute.forget_endpoint(endpoint_id)
        except OSError as error:
            fields = {"endpoint": endpoint_id, "error": str(error)}
            log.error("sockets not removed", extra=fields)


def _forget_reader(endpoint_id: str) -> None:
    """It is no endpoint's: whoever works on its branch may be about to start it."""
    branch_id = endpoint_id.removeprefix(compute.READER)
    with suppress(LockTimeout), lock_branches(branch_id, timeout=0):
        if compute.running_endpoint(branch_id) != endpoint_id:
            compute.forget_endpoint(endpoint_id)
        if not Branch.objects.filter(id=branch_id, deleted_at=None).exists():
            forget_lock(branch_id)


def redispatch_lost_operations(region: Region) -> None:
    """Hand over again every operation of the region that was, and that no job stands for.

    Jobs and operations are written together, so this finds work only after someone has
    emptied the queue by hand.
    """
    jobs = (
        "SELECT args->>'operation_id' FROM procrastinate_jobs"
        " WHERE status IN ('todo', 'doing') AND task_name = 'controlplane.run_operation'"
    )
    # Operations first: one dispatched between the two queries must not look lost.
    running = list(
        Operation.objects.filter(
            status__in=HANDED_OVER, dispatched_at__isnull=False, project__region=region
        ).values_list("id", flat=True)
    )
    if not running:
        return
    with connection.cursor() as cursor:
        cursor.execute(jobs)
        present = {row[0] for row in cursor.fetchall()}
    for operation_id in running:
        if str(operation_id) not in present:
            still = (
                Operation.objects.select_related("project__region")
                .filter(id=operation_id, status__in=HANDED_OVER)
                .first()
            )
            if still is not None:
                log.warning("job lost, enqueued again", extra={"operation": str(operation_id)})
                enqueue_operation(still, still.project)
