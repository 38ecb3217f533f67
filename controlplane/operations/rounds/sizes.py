"""Measures the branches of running computes, their sizes and how much is written to them, and
enforces the limits of their account's plan.

All files of the compute, and the log that replication slots hold, count like databases
(`Branch.stored_size`). A branch over its limit becomes read-only for transactions that do not
request otherwise, so its owner can still delete data. A branch over LENIENCY times the limit is
suspended each time it is seen to have grown further. It can be started again, to look at the data
or to free space.
"""

import logging
from collections.abc import Iterable, Mapping

from django.db.models import F, QuerySet
from django.db.models.functions import Coalesce

from controlplane.compute import compute, observation
from controlplane.events.changes import endpoint_requested
from controlplane.events.recording import record
from controlplane.events.types import EventType
from controlplane.models import (
    BRANCH_SIZE_LIMITS,
    Action,
    Branch,
    Endpoint,
    EndpointState,
    Host,
    Lane,
)
from controlplane.operations.actions.computes import note_written
from controlplane.operations.engine.scheduling import Step, schedule, unfinished
from controlplane.operations.locks import apart, locked_project
from controlplane.operations.rounds.looks import look_at_each

log = logging.getLogger(__name__)

# Parts of a limit: above NEAR a branch is measured more often, above LENIENCY it is suspended.
NEAR, LENIENCY = 0.8, 1.2
# Part of a limit: growth that deleting and vacuuming may cause.
SLACK_FRACTION = 0.01
LOOK_TIME = 30.0  # seconds


def measure_sizes(host: Host) -> None:
    """Store the sizes of the active endpoints' branches, and how much was written to them."""
    measure(_running(host))


def measure_nearly_full(host: Host) -> None:
    """Do the same for branches that are near their limits or over them."""
    for plan, limit in BRANCH_SIZE_LIMITS.items():
        measure(
            _running(host)
            .annotate(stored=Coalesce("branch__logical_size", 0) + F("branch__auxiliary_size"))
            .filter(project__account__plan=plan, stored__gt=limit * NEAR)
        )


def _running(host: Host) -> QuerySet[Endpoint]:
    return _active_endpoints(host).filter(id__in=compute.possibly_running())


def _active_endpoints(host: Host) -> QuerySet[Endpoint]:
    return Endpoint.objects.select_related(
        "branch__project__account", "branch__meter", "project__account"
    ).filter(host=host, deleted_at=None, current_state=EndpointState.ACTIVE)


def measure(endpoints: Iterable[Endpoint]) -> None:
    """Do the same for these endpoints, which are read with their branches, meters and accounts."""
    looked_at = list(endpoints)
    branches = {endpoint.id: endpoint.branch_id for endpoint in looked_at}

    def look(endpoint_id: str) -> observation.Measures | int:
        try:
            return observation.measure(endpoint_id, branches[endpoint_id])
        except Exception as error:
            log.info("size not told", extra={"endpoint": endpoint_id, "error": repr(error)})
            return observation.least_size(endpoint_id, branches[endpoint_id])

    for endpoint, found in look_at_each(looked_at, look, at="size", timeout=LOOK_TIME):
        with apart(endpoint.branch_id):
            if isinstance(found, int):
                # No compute escapes its limit by giving no proper answer.
                logical = endpoint.branch.logical_size
                beside = max(endpoint.branch.auxiliary_size, found - (logical or 0))
                _note_sizes(endpoint, logical, beside)
                continue
            # First: a position that cannot be noted must not hide the size.
            _note_sizes(endpoint, found.logical_size, found.auxiliary_size)
            meter, written = endpoint.branch.meter, found.written
            # Most running branches are not written to, so most cost no query.
            if (meter.written_data, meter.written_position) != (written.data, written.position):
                note_written(endpoint.branch_id, written)


def _note_sizes(endpoint: Endpoint, logical: int | None, auxiliary: int) -> None:
    sizes = {"logical_size": logical, "auxiliary_size": auxiliary}
    if all(getattr(endpoint.branch, name) == size for name, size in sizes.items()):
        return
    if endpoint.project.account.branch_size_limit is None:
        Branch.objects.filter(id=endpoint.branch_id).update(**sizes)
    else:
        _hold_to_limit(endpoint, sizes)


def _hold_to_limit(endpoint: Endpoint, sizes: Mapping[str, int | None]) -> None:
    """Store the sizes and, in the same transaction, schedule what follows from them.

    Does nothing while the project is busy, or the endpoint has unfinished operations: a
    configuration applied after a suspend would start it again. The next measurement compares with
    the sizes that are stored.
    """
    project_id = endpoint.project_id
    with apart(project_id), locked_project(project_id) as project:
        current = _active_endpoints(project.host).filter(id=endpoint.id).first()
        under_way = any(row.endpoint_id == endpoint.id for row in unfinished(project.id))
        if current is None or current.branch_id != endpoint.branch_id or under_way:
            return
        size = sum(filter(None, sizes.values()))
        action = _consequence(current.branch, size)
        Branch.objects.filter(id=current.branch_id).update(**sizes)
        if action:
            fields = {"endpoint": current.id, "branch": current.branch_id, "bytes": size}
            log.warning(f"size of a branch leads to {action}", extra=fields)
            step = Step(action, branch=current.branch, endpoint=current)
            operations = schedule(project, [step], lane=Lane.UPKEEP)
            if action == Action.SUSPEND_COMPUTE:
                kind = EventType.ENDPOINT_SUSPEND_REQUESTED
                record(endpoint_requested(kind, project, current, operations))


def _consequence(branch: Branch, size: int) -> Action | None:
    limit = branch.project.account.branch_size_limit
    assert limit is not None
    before = branch.stored_size
    if size > limit * LENIENCY and size > before + limit * SLACK_FRACTION:
        return Action.SUSPEND_COMPUTE
    if (size > limit) != (before > limit):
        return Action.APPLY_CONFIG
    return None
