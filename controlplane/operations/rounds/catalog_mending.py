"""Schedules `apply_config` for active endpoints whose compute lacks roles or databases of its
branch, if no operation is about to apply them. Also counts these endpoints for the worker's health
(`vitals`).

A start that cannot create one role lets clients of the others in and leaves that role to this
round. So does an operation that changed roles and was cancelled or has failed.
"""

import logging
import time
from dataclasses import dataclass
from typing import Self

from django.db.models import Exists, F, Model, OuterRef, Q, QuerySet

from controlplane.actors import PLATFORM, ActorType, acting_as
from controlplane.compute import compute
from controlplane.models import (
    UNFINISHED,
    Action,
    BranchState,
    Database,
    Endpoint,
    EndpointState,
    Host,
    Operation,
    RequestKind,
    Role,
)
from controlplane.operations.engine.scheduling import Step, schedule
from controlplane.operations.locks import apart, locked_project

log = logging.getLogger(__name__)

# Seconds between two attempts for one endpoint: the first pause, which then doubles, and the
# longest.
MIN_RETRY_DELAY, MAX_RETRY_DELAY = 5.0, 3600.0
# The first pause if an operation has failed for each remaining change: its owner has seen why, and
# has to remove the obstacle.
REFUSED_RETRY_DELAY = 60.0


@dataclass
class Mending:
    """One endpoint that is behind. Times are of the monotonic clock, in seconds."""

    is_refused: bool
    next_at: float
    pause: float

    @classmethod
    def begin(cls, now: float, *, is_refused: bool) -> Self:
        if is_refused:
            return cls(is_refused, now + REFUSED_RETRY_DELAY, REFUSED_RETRY_DELAY)
        return cls(is_refused, now, MIN_RETRY_DELAY)

    def put_off(self, now: float) -> None:
        self.next_at = now + self.pause
        self.pause = min(2 * self.pause, MAX_RETRY_DELAY)


# By endpoint id, from when the round finds an endpoint until it is no longer behind. A restarted
# worker begins with short pauses again.
_behind: dict[str, Mending] = {}


def mend_catalogs(host: Host) -> None:
    """Schedule `apply_config` for each active endpoint of the host that is behind, with growing
    pauses between attempts. If none is behind, this costs one query."""
    running = _endpoints_behind(host).filter(id__in=compute.possibly_running())
    found = {row.id: row for row in running}
    for endpoint_id in _behind.keys() - found.keys():
        del _behind[endpoint_id]
    now = time.monotonic()
    for endpoint in found.values():
        is_refused = endpoint.__dict__["was_reported"] and not endpoint.__dict__["has_unreported"]
        mending = _behind.setdefault(endpoint.id, Mending.begin(now, is_refused=is_refused))
        mending.is_refused = is_refused
        if now >= mending.next_at and not endpoint.__dict__["is_busy"]:
            mending.put_off(now)
            _schedule_mending(endpoint)


def endpoints_behind() -> int:
    """Return how many endpoints were behind at the last round for a reason that no operation has
    reported to the owner. An obstacle that an owner created does not concern the host's
    operator."""
    return sum(not mending.is_refused for mending in list(_behind.values()))


def _endpoints_behind(host: Host) -> QuerySet[Endpoint]:
    """Return the endpoints that are behind, each annotated: `was_reported` if Postgres has refused
    some of the branch's rows and an operation has failed for them, `has_unreported` if Postgres has
    refused some and no operation has failed for them, `is_busy` if operations hold the branch."""
    refused = ~Q(catalog_error="")
    reported = Q(catalog_error_of__isnull=False)
    return (
        Endpoint.objects.select_related("branch")
        .filter(
            host=host,
            project__deleted_at=None,
            deleted_at=None,
            current_state=EndpointState.ACTIVE,
            branch__current_state=BranchState.READY,
            branch__applied_catalog_revision__lt=F("branch__catalog_revision"),
        )
        .exclude(Exists(_unfinished().exclude(initiator_type=ActorType.PLATFORM)))
        .annotate(
            was_reported=_any_row(refused & reported),
            has_unreported=_any_row(refused & ~reported),
            is_busy=Exists(_unfinished()),
        )
    )


def _unfinished() -> QuerySet[Operation]:
    """Return the unfinished operations that hold the outer endpoint's branch or project."""
    held = Q(resources__contains=[OuterRef("branch_id")])
    return Operation.objects.filter(
        held | Q(resources__contains=[OuterRef("project_id")]),
        project_id=OuterRef("project_id"),
        status__in=UNFINISHED,
    )


def _any_row(condition: Q) -> Q:
    models: tuple[type[Model], ...] = (Role, Database)
    roles, databases = (
        Q(Exists(one._default_manager.filter(condition, branch=OuterRef("branch_id"))))
        for one in models
    )
    return roles | databases


def _schedule_mending(endpoint: Endpoint) -> None:
    project_id = endpoint.project_id
    with apart(project_id), acting_as(PLATFORM), locked_project(project_id) as project:
        # Check again now that the project's lock keeps others from scheduling for it.
        current = _endpoints_behind(project.host).filter(id=endpoint.id).first()
        if (
            current is None
            or current.__dict__["is_busy"]
            or current.branch_id != endpoint.branch_id
        ):
            return
        log.warning("catalog behind, applied again", extra={"endpoint": endpoint.id})
        # Not in the `upkeep` lane: a client may be unable to log in until then.
        step = Step(Action.APPLY_CONFIG, branch=current.branch, endpoint=current)
        schedule(project, [step], RequestKind.CHANGE_CATALOG)
