"""Suspends endpoints that nobody uses (design, section 5: activity, suspend_timeout_seconds)."""

import logging
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import psycopg
from django.conf import settings
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone

from controlplane.compute import compute
from controlplane.models import UNFINISHED, Action, Endpoint, EndpointState, Operation, Region
from controlplane.operations.details import SuspendComputeDetails
from controlplane.operations.engine import Step, locked_project, schedule
from controlplane.operations.silence import check_silent, is_silent, listening

log = logging.getLogger(__name__)

LONGEST_BETWEEN_LOOKS = 10.0  # seconds
LOOKS_AT_ONCE = 8

# When this worker last asked each endpoint's compute; asking costs it a connection.
_looked_at: dict[str, datetime] = {}


def suspend_idle_endpoints(region: Region) -> None:
    """Ask the active endpoints' computes for activity, and suspend those without any.

    Keeps `last_active`. An endpoint is asked three times per timeout, at least every
    LONGEST_BETWEEN_LOOKS.
    """
    now = timezone.now()
    active = _active_endpoints(region)
    for gone in _looked_at.keys() - {endpoint.id for endpoint in active}:
        del _looked_at[gone]
    due = [endpoint for endpoint in active if _is_due(endpoint, now)]
    _looked_at.update((endpoint.id, now) for endpoint in due)
    listen = listening(compute.last_activity)
    # Side by side: a compute that hangs must not hold up the look at all the others.
    with ThreadPoolExecutor(LOOKS_AT_ONCE) as threads:
        looks = [(row, threads.submit(listen, row.id)) for row in due]
        for endpoint, look in looks:
            try:
                _take_in(endpoint, look.result())
            except psycopg.Error as error:
                log.info("endpoint=%s activity=unknown error=%r", endpoint.id, str(error))
    check_silent(active)


def _is_due(endpoint: Endpoint, now: datetime) -> bool:
    if is_silent(endpoint.id):
        return True
    timeout = _timeout_of(endpoint)
    between = min(timeout / 3, LONGEST_BETWEEN_LOOKS) if timeout > 0 else LONGEST_BETWEEN_LOOKS
    looked_at = _looked_at.get(endpoint.id)
    return looked_at is None or now - looked_at >= timedelta(seconds=between)


def _timeout_of(endpoint: Endpoint) -> int:
    """In seconds; -1 for never."""
    return endpoint.suspend_timeout_seconds or int(settings.DEFAULT_SUSPEND_TIMEOUT)


def _take_in(endpoint: Endpoint, activity: datetime | None) -> None:
    """Note the endpoint's activity; suspend it once its timeout has passed without."""
    timeout = _timeout_of(endpoint)
    last = max(filter(None, (activity, endpoint.last_active, endpoint.started_at)), default=None)
    if last is None:
        return
    if endpoint.last_active is None or last > endpoint.last_active:
        Endpoint.objects.filter(id=endpoint.id).update(last_active=last)
    if timeout > 0 and timezone.now() - last >= timedelta(seconds=timeout):
        _suspend(endpoint, last)


def _suspend(endpoint: Endpoint, last: datetime) -> None:
    with locked_project(endpoint.project_id) as project:
        still = _active_endpoints(project.region).filter(id=endpoint.id).first()
        # The proxy notes connections as they come: one may just have.
        if still is None or (still.last_active and still.last_active > last):
            return
        schedule(
            project,
            [
                Step(
                    Action.SUSPEND_COMPUTE,
                    branch=still.branch,
                    endpoint=still,
                    details=SuspendComputeDetails(if_idle=True),
                )
            ],
        )


def _active_endpoints(region: Region) -> QuerySet[Endpoint]:
    unfinished = Operation.objects.filter(endpoint=OuterRef("id"), status__in=UNFINISHED)
    return Endpoint.objects.select_related("branch").filter(
        ~Exists(unfinished),
        project__region=region,
        deleted_at=None,
        current_state=EndpointState.ACTIVE,
    )
