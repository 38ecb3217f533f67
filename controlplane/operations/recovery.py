"""Removes the data of deleted projects once the time is over in which they could be recovered, and
before that, the oldest first, where the host's disk has come to its reserve."""

import logging

from django.db.models import Q

from controlplane import clock
from controlplane.actors import EXPIRY, acting_as
from controlplane.compute.space import host_space
from controlplane.events.changes import project_removed
from controlplane.events.recording import record
from controlplane.models import UNFINISHED, Action, Operation, Project, Region
from controlplane.operations.locks import locked_project
from controlplane.operations.scheduling import Step, schedule

log = logging.getLogger(__name__)

# Projects that one round looks after; the next one goes on.
AT_ONCE = 50


def remove_unrecovered(region: Region) -> None:
    """Schedule the removal of what is due."""
    kept = Project.objects.filter(region=region, recoverable_until__isnull=False)
    over = Q(recoverable_until__lte=clock.now())
    for project_id in kept.filter(over).values_list("id", flat=True)[:AT_ONCE]:
        _remove(project_id, over)
    if host_space().is_short and not _makes_room(region):
        oldest = kept.order_by("deleted_at").values_list("id", flat=True).first()
        if oldest is not None:
            log.warning("disk short, deleted project removed early", extra={"project": oldest})
            _remove(oldest, Q())


def _remove(project_id: str, due: Q) -> None:
    with acting_as(EXPIRY), locked_project(project_id) as project:
        # Somebody may have recovered it at this moment.
        still = Project.objects.filter(due, id=project_id, recoverable_until__isnull=False)
        if not still.update(recoverable_until=None):
            return
        operations = schedule(project, [Step(Action.DELETE_TENANT, holds_project=True)])
        record(project_removed(project, operations))


def _makes_room(region: Region) -> bool:
    """Whether the last one is still being removed: it may be enough."""
    return Operation.objects.filter(
        project__region=region, action=Action.DELETE_TENANT, status__in=UNFINISHED
    ).exists()
