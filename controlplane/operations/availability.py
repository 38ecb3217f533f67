"""Schedules the availability checks that are due (specification, section 2.2)."""

from datetime import timedelta
from typing import Any

from django.db import connection

from controlplane.actors import CHECK, acting_as
from controlplane.models import CATALOG_UNREAD, UNFINISHED, Action, Branch, Endpoint, Region
from controlplane.operations.locks import locked_project
from controlplane.operations.scheduling import Step, schedule

FIRST_CHECK = timedelta(hours=2)
LONGEST_PAUSE = timedelta(days=1)
# After so many checks since the last use the pause is as long as it gets.
CHECKS_THAT_COUNT = 5
# Checks under way: a region's, and an account's of these. A check starts a Postgres and reads
# all it has, so after a night off the many that are due at once come one after the other.
AT_ONCE, AT_ONCE_OF_AN_ACCOUNT = 4, 2

# One query for all endpoints: an index gives the newest checks of each.
DUE = """
WITH under_way AS MATERIALIZED (
    SELECT p.account_id FROM controlplane_operation o
    JOIN controlplane_project p ON p.id = o.project_id
    WHERE o.status = ANY(%(unfinished)s) AND o.action = %(check)s AND p.region_id = %(region)s
), due AS (
    SELECT e.id, p.account_id, since.pause_began, row_number() OVER (
        PARTITION BY p.account_id ORDER BY since.pause_began, e.id
    ) AS position
    FROM controlplane_endpoint e
    JOIN controlplane_project p ON p.id = e.project_id
    JOIN controlplane_branch b ON b.id = e.branch_id
    CROSS JOIN LATERAL (
        SELECT coalesce(max(newest.created_at), e.created_at) AS pause_began,
            count(*) FILTER (WHERE newest.created_at > coalesce(e.last_active, e.created_at))
                AS checks_since_use
        FROM (
            SELECT o.created_at FROM controlplane_operation o
            WHERE o.endpoint_id = e.id AND o.action = %(check)s
            ORDER BY o.created_at DESC LIMIT %(counted)s
        ) AS newest
    ) AS since
    WHERE p.region_id = %(region)s AND p.deleted_at IS NULL
        AND e.deleted_at IS NULL AND NOT e.disabled
        AND (b.catalog_mark = %(unread)s OR since.pause_began <= now() - least(
            %(first)s * power(2, greatest(since.checks_since_use - 1, 0)), %(longest)s
        ))
        AND NOT EXISTS (
            SELECT FROM controlplane_operation o
            WHERE o.project_id = p.id AND o.endpoint_id = e.id AND o.status = ANY(%(unfinished)s)
        )
)
SELECT id FROM due
WHERE position + (SELECT count(*) FROM under_way WHERE under_way.account_id = due.account_id)
    <= %(of_an_account)s
ORDER BY pause_began
LIMIT greatest(0, %(at_once)s - (SELECT count(*) FROM under_way))
"""


def check_availability(region: Region) -> None:
    """Schedule checks that are due, the longest due first, as many as may be under way at once.

    The first comes two hours after the endpoint was created; then the pause doubles with
    each, up to a day, and begins again at two hours once the endpoint has been used. One comes at
    once, and once, where a compute was killed before its catalog was read: a password that was
    set there last is known to nobody else, and who has it could not have the compute started.
    """
    values: dict[str, Any] = {
        "region": region.id,
        "check": Action.CHECK_AVAILABILITY,
        "unfinished": list(UNFINISHED),
        "counted": CHECKS_THAT_COUNT,
        "unread": CATALOG_UNREAD,
        "first": FIRST_CHECK,
        "longest": LONGEST_PAUSE,
        "at_once": AT_ONCE,
        "of_an_account": AT_ONCE_OF_AN_ACCOUNT,
    }
    with connection.cursor() as cursor:
        cursor.execute(DUE, values)
        due = [row[0] for row in cursor.fetchall()]
    for endpoint in Endpoint.objects.select_related("branch").filter(id__in=due):
        with acting_as(CHECK), locked_project(endpoint.project_id) as project:
            step = Step(Action.CHECK_AVAILABILITY, branch=endpoint.branch, endpoint=endpoint)
            schedule(project, [step])
            unread = Branch.objects.filter(id=endpoint.branch_id, catalog_mark=CATALOG_UNREAD)
            unread.update(catalog_mark="")
