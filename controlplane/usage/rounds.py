"""The rounds that hold projects to the quotas of their settings, and forget old usage.

The endpoints of a project that has used up a quota are suspended within QUOTA_INTERVAL seconds
after the use is known. Times are known immediately. Sizes and written bytes are measured in the
same round. Proxies report the bytes that they sent every few seconds. A suspended endpoint stays
suspended: requests to start it are refused (`services.rules.plan_limits`).
"""

import logging
from collections.abc import Mapping, Sequence
from itertools import groupby

from django.db import connection

from controlplane.compute import compute
from controlplane.events.changes import endpoint_requested, quota_exceeded
from controlplane.events.recording import record
from controlplane.events.types import EventType
from controlplane.models import Action, Consumed, Endpoint, EndpointState, Host, Lane
from controlplane.models.consumed import NOTHING
from controlplane.models.consumption import consumed_by_projects
from controlplane.operations.engine.scheduling import Step, schedule, unfinished
from controlplane.operations.locks import apart, locked_project
from controlplane.operations.quotas import LOGICAL_SIZE, WRITTEN, UsedUp, quota_of, used_up_of
from controlplane.operations.rounds.sizes import measure

log = logging.getLogger(__name__)

QUOTA_INTERVAL = 3.0  # seconds


def hold_to_quotas(host: Host) -> None:
    """Suspend the host's running endpoints whose project has used up a quota. Only running
    endpoints of projects with a quota are looked at."""
    running = _running(host)
    measured = [one for one in running if {LOGICAL_SIZE, WRITTEN} & quota_of(one.project).keys()]
    if measured:
        measure(measured)
        running = _running(host)
    consumed = consumed_by_projects({endpoint.project_id for endpoint in running})
    for project_id, endpoints in groupby(running, key=lambda endpoint: endpoint.project_id):
        with apart(project_id):
            doomed = _over_quota(list(endpoints), consumed)
            if doomed:
                _suspend(project_id, doomed)


def _running(host: Host) -> list[Endpoint]:
    """Return the active endpoints of projects with a quota, ordered by project."""
    endpoints = Endpoint.objects.select_related(
        "branch__project__account", "branch__meter", "project__account"
    )
    return list(
        endpoints.filter(
            id__in=compute.possibly_running(),
            host=host,
            project__settings__has_key="quota",
            project__deleted_at=None,
            deleted_at=None,
            current_state=EndpointState.ACTIVE,
        ).order_by("project_id", "id")
    )


def _over_quota(
    endpoints: Sequence[Endpoint], consumed: Mapping[str, Consumed]
) -> Mapping[str, UsedUp]:
    """Return for each endpoint that may not run, by id, the quota that is used up."""
    found = {
        one.id: used_up_of(quota_of(one.project), consumed.get(one.project_id, NOTHING), one.branch)
        for one in endpoints
    }
    return {endpoint_id: why for endpoint_id, why in found.items() if why}


def _suspend(project_id: str, doomed: Mapping[str, UsedUp]) -> None:
    with locked_project(project_id) as project:
        # An endpoint with unfinished operations is left to the next round: a configuration applied
        # after the suspend would start it again.
        busy = {row.endpoint_id for row in unfinished(project.id)}
        running = Endpoint.objects.select_related("branch").filter(
            id__in=doomed.keys() - busy, deleted_at=None, current_state=EndpointState.ACTIVE
        )
        limits = quota_of(project)
        for endpoint in running:
            why = doomed[endpoint.id]
            if limits.get(why.quota.field) != why.limit:
                continue  # the limit was changed meanwhile
            step = Step(Action.SUSPEND_COMPUTE, branch=endpoint.branch, endpoint=endpoint)
            operations = schedule(project, [step], lane=Lane.UPKEEP)
            log.warning("quota used up", extra={"endpoint": endpoint.id, "quota": why.quota.field})
            kind = EventType.ENDPOINT_SUSPEND_REQUESTED
            record(
                quota_exceeded(
                    project,
                    endpoint,
                    operations,
                    quota=why.quota.field,
                    words=why.quota.words,
                    limit=why.limit,
                    used=why.used,
                ),
                endpoint_requested(kind, project, endpoint, operations),
            )


# The most rows that one round deletes; the next round continues.
BATCH_SIZE = 50_000
# By account, because the index begins with it.
OLD_USAGE = """
DELETE FROM controlplane_usage WHERE id IN (
    SELECT u.id FROM controlplane_account a
    CROSS JOIN perch_spans() s
    JOIN controlplane_usage u
        ON u.account_id = a.id AND u.span = s.span AND u.start < now() - s.kept - s.step
    LIMIT %s
)
"""
# A reporter repeats a report until it is answered, and no database is down for as long as this.
SILENT_REPORTERS = """
DELETE FROM controlplane_trafficreporter WHERE reported_at < now() - interval '7 days'
"""


def forget_usage(host: Host) -> None:
    """Delete the rows of all hosts, because an account's rows are of several hosts."""
    with connection.cursor() as cursor:
        cursor.execute(OLD_USAGE, [BATCH_SIZE])
        cursor.execute(SILENT_REPORTERS)
