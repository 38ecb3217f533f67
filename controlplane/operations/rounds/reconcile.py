"""Compares the rows with the processes of this host, and corrects the differences.

A compute that died becomes `idle`, a Postgres that belongs to no endpoint is stopped, and an
operation whose job was lost is enqueued again.
"""

import logging
import math
import time
from collections.abc import Collection, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime

from django.conf import settings

from controlplane import clock
from controlplane.actors import PLATFORM
from controlplane.compute import compute
from controlplane.compute.data.outbound import release_outbound
from controlplane.compute.host.filesystem import LockTimeout, forget_lock, lock_branches
from controlplane.compute.processes.account_processes import end_stray_accounts
from controlplane.compute.processes.process import StopFailed
from controlplane.models import (
    CATALOG_UNREAD,
    HANDED_OVER,
    UNFINISHED,
    Branch,
    Endpoint,
    EndpointState,
    Host,
    Job,
    JobTask,
    Operation,
)
from controlplane.operations.disk import start_refusal
from controlplane.operations.locks import apart, left_if_busy, locked_project
from controlplane.operations.own_host import is_own
from controlplane.operations.queue.jobs import enqueue_operation
from controlplane.operations.states import enter

log = logging.getLogger(__name__)

# Seconds to wait for the lock of a branch whose compute must not run on.
LOST_LOCK_TIMEOUT = 30.0
# Seconds in which a compute may shut down in order, while the others wait for the round.
STOP_TIME = 30.0
# Seconds between two looks at all rows and directories of the host. The looks between find what has
# happened to the computes that this release has started.
FULL_LOOK_INTERVAL = 10.0
# When this process last looked at all rows, by the monotonic clock.
_looked_at = -math.inf


def reconcile_host(host: Host) -> None:
    """Correct every difference between the host's rows and its processes.

    A compute that is gone counts as having run until the last look, and not for the time that the
    host was down. An endpoint whose compute this process has never seen is found by the next full
    look at the rows.
    """
    global _looked_at
    began = time.monotonic()
    looks_at_all = began - _looked_at >= FULL_LOOK_INTERVAL
    ran = compute.possibly_running()
    runs = compute.look_at_all(leased_only=not looks_at_all)
    looks_at = ran | {one for one in runs.values() if one}
    if not (looks_at or runs or looks_at_all):
        return
    looking_at, all_seen = clock.now(), True
    active = Endpoint.objects.filter(host=host, deleted_at=None, current_state=EndpointState.ACTIVE)
    if looks_at_all:
        _looked_at = began
    else:
        active = active.filter(id__in=looks_at)
    says_active = dict(active.values_list("branch_id", "id"))
    for branch_id in says_active.keys() | runs.keys():
        # If nothing should run, what a dead Postgres left behind is a difference too.
        if branch_id not in says_active or says_active[branch_id] != runs.get(branch_id):
            try:
                # A branch's files are untrusted: an error in one must not affect all others.
                with apart(branch_id):
                    is_left = True
                    with left_if_busy(branch_id):
                        reconcile_branch(branch_id, timeout=0)
                        is_left = False
                    all_seen = all_seen and not is_left
            except LockTimeout:
                all_seen = False  # an operation works on it; the next round looks again
    if all_seen:
        Host.objects.filter(id=host.id).update(computes_seen_at=looking_at)
    _forget_deleted(compute.endpoints_with_sockets() - {*says_active.values(), *runs.values()})


def reconcile_branch(branch_id: str, *, timeout: float = 60.0) -> None:
    """Correct the difference on one branch, unless an unfinished operation holds the branch.

    Raises LockTimeout if other work holds the branch for `timeout` seconds.
    """
    with lock_branches(branch_id, timeout=timeout):
        branch = Branch.objects.filter(id=branch_id).first()
        runs_for = compute.running_endpoint(branch_id)
        if branch is None:
            # Not a branch of this database. Another Perch may share the host, but never the state
            # directory.
            log.warning("stopping a compute of no branch", extra={"branch": branch_id})
            compute.stop(branch_id, timeout=STOP_TIME)
            forget_lock(branch_id)
            return
        gone = None
        with locked_project(branch.project_id) as project:
            lives_elsewhere = project.host_id != settings.HOST_NAME
            if not lives_elsewhere and not is_own(project.host):
                return
            if Operation.objects.filter(
                project_id=branch.project_id,
                status__in=UNFINISHED,
                resources__overlap=[branch_id, branch.project_id],
            ).exists():
                return
            endpoint = Endpoint.objects.filter(branch_id=branch_id, deleted_at=None).first()
            # What runs here of a project that lives on another host is not its compute.
            if not lives_elsewhere and endpoint and endpoint.current_state == EndpointState.ACTIVE:
                if runs_for == endpoint.id:
                    return
                log.warning("compute gone, endpoint idle", extra={"endpoint": endpoint.id})
                gone = endpoint.id
                # The actor is the platform, whoever caused this look.
                enter(
                    project,
                    endpoint,
                    EndpointState.IDLE,
                    now=_ended_at(endpoint, project.host.computes_seen_at),
                    reason=(
                        "it was filling this host's disk"
                        if start_refusal(branch_id)
                        else "its compute exited on its own"
                    ),
                    actor=PLATFORM,
                )
                # What SQL changed last is known only after a reading; see `availability`.
                Branch.objects.filter(id=branch_id).update(catalog_mark=CATALOG_UNREAD)
        if runs_for:
            fields = {"branch": branch_id, "endpoint": runs_for}
            log.warning("stopping a compute that should not run", extra=fields)
        # The pooler of a compute that died still runs, and would keep its clients waiting.
        compute.stop(branch_id, timeout=STOP_TIME)
        if gone:
            # One that was taken over can remove every file that leads to its processes.
            compute.kill(branch_id, gone)
        if branch.deleted_at is not None:
            forget_lock(branch_id)


def stop_all_computes() -> None:
    """Stop every compute of this state directory, whose host was declared lost: its projects live
    on other hosts."""
    for branch_id in compute.running_branches():
        try:
            with lock_branches(branch_id, timeout=LOST_LOCK_TIMEOUT):
                compute.stop(branch_id, timeout=STOP_TIME)
        except (LockTimeout, StopFailed) as error:
            log.error("compute not stopped", extra={"branch": branch_id, "error": str(error)})


def end_strays(host: Host) -> None:
    """End the processes on this host that run under the account of a branch that does not run or
    no longer exists."""
    end_stray_accounts()


def _ended_at(endpoint: Endpoint, seen_at: datetime | None) -> datetime:
    """Return the best estimate of when a compute that is gone ended: when it was last seen
    (`seen_at`), or when it started if that is later, but not after the present time."""
    now = clock.now()
    return min(now, max(filter(None, (seen_at, endpoint.started_at)), default=now))


def _forget_deleted(endpoint_ids: Set[str]) -> None:
    """Remove what is left on this host of those of the endpoints that no longer exist."""
    if not endpoint_ids:
        return
    living = Endpoint.objects.filter(id__in=endpoint_ids, deleted_at=None)
    for endpoint_id in endpoint_ids - set(living.values_list("id", flat=True)):
        with apart(endpoint_id):
            if endpoint_id.startswith(compute.INTERNAL_PREFIX):
                _forget_internal_compute(endpoint_id)
            else:
                compute.forget_endpoint(endpoint_id)


def _forget_internal_compute(endpoint_id: str) -> None:
    """Remove what is left of a compute that the platform alone used. It belongs to no endpoint, and
    the holder of the branch's lock may be about to start it."""
    branch_id = endpoint_id.removeprefix(compute.INTERNAL_PREFIX)
    with suppress(LockTimeout), lock_branches(branch_id, timeout=0):
        if compute.running_endpoint(branch_id) != endpoint_id:
            compute.forget_endpoint(endpoint_id)
        if not Branch.objects.filter(id=branch_id, deleted_at=None).exists():
            forget_lock(branch_id)


def redispatch_lost_operations(host: Host) -> None:
    """Enqueue again every dispatched operation of the host that has no job.

    Jobs and operations are written in one transaction, so this finds something only after somebody
    has emptied the queue by hand.
    """
    # Read the operations first: one dispatched between the two queries must not look lost.
    running = list(
        Operation.objects.filter(
            status__in=HANDED_OVER, dispatched_at__isnull=False, project__host=host
        ).values_list("id", flat=True)
    )
    if not running:
        return
    ids = list(map(str, running))
    jobs = Job.objects.filter(task=JobTask.RUN_OPERATION, subject__in=ids)
    present = set(jobs.values_list("subject", flat=True))
    for operation_id in ids:
        if operation_id in present:
            continue
        with apart(operation_id):
            current = (
                Operation.objects.select_related("project__host")
                .filter(id=operation_id, status__in=HANDED_OVER)
                .first()
            )
            if current is not None:
                log.warning("job lost, enqueued again", extra={"operation": operation_id})
                enqueue_operation(current, current.project)


def stop_computes(branch_ids: Collection[str]) -> None:
    """Stop the computes of the branches, and remove the host's rules about what computes may
    connect to. The worker must not run. Raises process.StopFailed, patience.OutOfPatience."""
    with ThreadPoolExecutor() as threads:
        list(threads.map(compute.stop, branch_ids))
    release_outbound()
