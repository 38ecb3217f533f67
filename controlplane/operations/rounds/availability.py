"""Schedules the availability checks that are due (specification, section 2.2)."""

from datetime import timedelta
from typing import Any

from django.db import connection

from controlplane.actors import CHECK, acting_as
from controlplane.models import CATALOG_UNREAD, UNFINISHED, Action, Branch, Endpoint, Host
from controlplane.operations.engine.scheduling import Step, schedule
from controlplane.operations.locks import apart, locked_project

FIRST_CHECK_DELAY = timedelta(hours=2)
MAX_CHECK_INTERVAL = timedelta(days=1)
# After this many checks since the endpoint was last used, the pause no longer grows.
MAX_COUNTED_CHECKS = 5
# The most unfinished checks of a host, and of those the most of one account. A check starts a
# Postgres and reads all its data, so the many that are due after the host was off run one after
# another.
MAX_CONCURRENT_CHECKS, MAX_CONCURRENT_PER_ACCOUNT = 4, 2

# One statement for all endpoints. It computes when the next check is due for those whose row says
# that it may be due by now (`Endpoint.check_due_at`), and writes what it has found to the row. If a
# client has used the endpoint meanwhile, the row has changed, and the next round computes it anew.
DUE = """
WITH under_way AS MATERIALIZED (
    SELECT p.account_id FROM controlplane_operation o
    JOIN controlplane_project p ON p.id = o.project_id
    WHERE o.status = ANY(%(unfinished)s) AND o.action = %(check)s AND p.host_id = %(host)s
), unread AS MATERIALIZED (
    SELECT id FROM controlplane_branch
    WHERE host_id = %(host)s AND catalog_mark = '{unread}' AND deleted_at IS NULL
), looked_at AS MATERIALIZED (
    SELECT id FROM controlplane_endpoint
    WHERE host_id = %(host)s AND deleted_at IS NULL AND NOT disabled
        AND (check_due_at IS NULL OR check_due_at <= now())
    UNION
    SELECT e.id FROM unread JOIN controlplane_endpoint e ON e.branch_id = unread.id
    WHERE e.deleted_at IS NULL AND NOT e.disabled
), found AS MATERIALIZED (
    SELECT e.id, e.project_id, e.branch_id, e.last_active, e.check_due_at, since.pause_began,
        since.pause_began + least(
            %(first)s * power(2, greatest(since.checks_since_use - 1, 0)), %(longest)s
        ) AS due_at
    FROM looked_at JOIN controlplane_endpoint e ON e.id = looked_at.id
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
), noted AS (
    UPDATE controlplane_endpoint e SET check_due_at = free.due_at
    FROM (
        SELECT same.id, found.due_at FROM found JOIN controlplane_endpoint same
            ON same.id = found.id AND same.last_active IS NOT DISTINCT FROM found.last_active
        WHERE found.check_due_at IS DISTINCT FROM found.due_at
        FOR NO KEY UPDATE OF same SKIP LOCKED
    ) AS free
    WHERE e.id = free.id
), due AS (
    SELECT f.id, p.account_id, f.pause_began, row_number() OVER (
        PARTITION BY p.account_id ORDER BY f.pause_began, f.id
    ) AS position
    FROM found f JOIN controlplane_project p ON p.id = f.project_id
    WHERE p.deleted_at IS NULL
        AND (f.due_at <= now() OR f.branch_id IN (SELECT id FROM unread))
        AND NOT EXISTS (
            SELECT FROM controlplane_operation o
            WHERE o.project_id = f.project_id AND o.endpoint_id = f.id
                AND o.status = ANY(%(unfinished)s)
        )
)
SELECT id FROM due
WHERE position + (SELECT count(*) FROM under_way WHERE under_way.account_id = due.account_id)
    <= %(of_an_account)s
ORDER BY pause_began
LIMIT greatest(0, %(at_once)s - (SELECT count(*) FROM under_way))
""".replace("{unread}", CATALOG_UNREAD)


def check_availability(host: Host) -> None:
    """Schedule the checks that are due, the longest overdue first, as far as the limits on
    unfinished checks allow.

    The first check of an endpoint is due two hours after its creation. The pause then doubles with
    each check, up to a day. It is two hours again once the endpoint has been used. If a compute was
    killed before its catalog was read, one check is due immediately: a password that SQL set last
    is known only to that compute, so a client with that password could not wake the endpoint.
    """
    values: dict[str, Any] = {
        "host": host.id,
        "check": Action.CHECK_AVAILABILITY,
        "unfinished": list(UNFINISHED),
        "counted": MAX_COUNTED_CHECKS,
        "first": FIRST_CHECK_DELAY,
        "longest": MAX_CHECK_INTERVAL,
        "at_once": MAX_CONCURRENT_CHECKS,
        "of_an_account": MAX_CONCURRENT_PER_ACCOUNT,
    }
    with connection.cursor() as cursor:
        cursor.execute(DUE, values)
        due = [row[0] for row in cursor.fetchall()]
    for endpoint in Endpoint.objects.select_related("branch").filter(id__in=due):
        project_id = endpoint.project_id
        with apart(project_id), acting_as(CHECK), locked_project(project_id) as project:
            step = Step(Action.CHECK_AVAILABILITY, branch=endpoint.branch, endpoint=endpoint)
            schedule(project, [step])
            unread = Branch.objects.filter(id=endpoint.branch_id, catalog_mark=CATALOG_UNREAD)
            unread.update(catalog_mark="")
