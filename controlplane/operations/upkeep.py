"""Work that nobody asks for, repeated by the worker: see `ROUNDS` for what and how often."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings
from django.db.models import OuterRef, Q, Subquery
from django.utils import timezone

from controlplane.compute.binaries import postgres_version
from controlplane.compute.logs import follow_logs
from controlplane.compute.pooler import pgbouncer
from controlplane.compute.space import host_space
from controlplane.models import (
    UNFINISHED,
    Action,
    Endpoint,
    Operation,
    Region,
)
from controlplane.operations.disk import guard_disk
from controlplane.operations.engine import Step, locked_project, schedule
from controlplane.operations.idleness import suspend_idle_endpoints
from controlplane.operations.reconcile import reconcile_host, redispatch_lost_operations
from controlplane.operations.sizes import measure_nearly_full, measure_sizes

log = logging.getLogger(__name__)

FIRST_CHECK = timedelta(hours=2)
LONGEST_PAUSE = timedelta(days=1)


@dataclass(frozen=True)
class Round:
    """Something to do again and again; `interval` is in seconds."""

    interval: float
    do: Callable[[Region], None]


def own_region() -> Region:
    """The region this host serves, made on the first call; the first region is the default."""
    region, _ = Region.objects.get_or_create(
        id=settings.REGION,
        defaults={
            "name": settings.REGION,
            "host": settings.REGION_HOST,
            "port": settings.PROXY_PORT,
            "default": not Region.objects.filter(default=True).exists(),
        },
    )
    return region


def publish(region: Region) -> None:
    """Say that the worker is alive, and what its host can do."""
    space = host_space()
    Region.objects.filter(id=region.id).update(
        worker_seen_at=timezone.now(),
        pooling_available=pgbouncer() is not None,
        pg_version=int(postgres_version().split(".")[0]),
        port=settings.PROXY_PORT,
        disk_free_bytes=space.free,
        disk_reserve_bytes=space.reserve,
    )


def check_availability(region: Region) -> None:
    """Schedule the checks that are due.

    The first comes two hours after the endpoint was created; then the pause doubles with
    each, up to a day, and begins again at two hours once the endpoint has been used.
    """
    now = timezone.now()
    last = Operation.objects.filter(
        endpoint=OuterRef("id"), action=Action.CHECK_AVAILABILITY
    ).order_by("-created_at")
    busy = Operation.objects.filter(status__in=UNFINISHED, endpoint=OuterRef("id"))
    candidates = (
        Endpoint.objects.filter(
            project__region=region, project__deleted_at=None, deleted_at=None, disabled=False
        )
        .exclude(Q(id__in=busy.values("endpoint")))
        .annotate(checked_at=Subquery(last.values("created_at")[:1]))
        .filter(
            Q(checked_at=None, created_at__lt=now - FIRST_CHECK)
            | Q(checked_at__lt=now - FIRST_CHECK)
        )
    )
    for endpoint in candidates:
        if endpoint.checked_at is None or now - endpoint.checked_at >= _pause(endpoint):
            with locked_project(endpoint.project_id) as project:
                schedule(
                    project,
                    [
                        Step(
                            Action.CHECK_AVAILABILITY,
                            branch=endpoint.branch,
                            endpoint=endpoint,
                        )
                    ],
                )


def follow_compute_logs(region: Region) -> None:
    """Read what the computes of this host log, whoever has started them."""
    follow_logs()


def _pause(endpoint: Endpoint) -> timedelta:
    """The time between checks: twice as long for each check since the endpoint was used."""
    since = endpoint.last_active or endpoint.created_at
    checks = Operation.objects.filter(
        endpoint=endpoint, action=Action.CHECK_AVAILABILITY, created_at__gt=since
    ).count()
    doublings = max(0, min(checks, 10) - 1)
    return min(FIRST_CHECK * (1 << doublings), LONGEST_PAUSE)


ROUNDS: Sequence[Round] = (
    Round(0.5, suspend_idle_endpoints),
    Round(0.5, guard_disk),
    Round(2, reconcile_host),
    Round(5, publish),
    Round(10, redispatch_lost_operations),
    Round(5, check_availability),
    Round(30, measure_sizes),
    Round(2, measure_nearly_full),
    Round(5, follow_compute_logs),
)
