"""Removes hidden branches that are no longer needed: data that a restore has replaced, the data of
snapshots that are gone, and past moments that no client reads any more."""

import logging
from datetime import timedelta

from django.db.models import Exists, OuterRef

from controlplane import clock
from controlplane.models import (
    UNFINISHED,
    Action,
    Branch,
    Endpoint,
    EndpointState,
    Host,
    Operation,
)
from controlplane.operations.engine.branch_deletion import schedule_deletion
from controlplane.operations.locks import apart, locked_project

log = logging.getLogger(__name__)

# The most branches that one round handles; the next round continues.
BATCH_SIZE = 50
RETRY_DELAY = timedelta(minutes=10)


def remove_unwanted(host: Host) -> None:
    """Schedule the removal of each unneeded branch that no unfinished operation holds."""
    held = Operation.objects.filter(
        project=OuterRef("project"),
        resources__contains=[OuterRef("id")],
        status__in=UNFINISHED,
    )
    tried = Operation.objects.filter(
        branch=OuterRef("id"),
        action=Action.DELETE_TIMELINE,
        created_at__gt=clock.now() - RETRY_DELAY,
    )
    read = Endpoint.objects.filter(
        branch=OuterRef("id"), deleted_at=None, current_state=EndpointState.ACTIVE
    )
    unwanted = Branch.objects.filter(
        ~Exists(held),
        ~Exists(read),
        ~Exists(tried),
        hidden=True,
        snapshot=None,
        deleted_at=None,
        host=host,
        project__deleted_at=None,
    )
    for branch in unwanted[:BATCH_SIZE]:
        project_id = branch.project_id
        with apart(project_id), locked_project(project_id) as project:
            current = unwanted.filter(id=branch.id).first()
            if current is not None:
                schedule_deletion(project, current)
                log.info("hidden branch removed", extra={"branch": current.id})
