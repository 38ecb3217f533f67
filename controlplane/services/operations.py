"""Operations for callers: lists with a cursor, and single operations (rules 5 and 6)."""

import uuid
from collections.abc import Sequence
from datetime import UTC

from django.db import connection

from controlplane.compute.host.steps import Step as Step
from controlplane.models import Account, Operation, OperationStatus
from controlplane.models.operation_pages import OperationFilter, chains_of, page_of
from controlplane.models.reading import Reading
from controlplane.operations.engine.step_history import steps_of as steps_of
from controlplane.services.errors import NotFound
from controlplane.services.operation_filters import time_of
from controlplane.services.projects import find_project

# Reads the operation and checks its project in one statement, the only one of most requests for an
# operation.
OWN_OPERATION = Reading(
    Operation,
    """
    WHERE t.project_id = %(project)s AND t.id = %(operation)s
        AND project.account_id = %(account)s AND project.deleted_at IS NULL
    """,
    joined=["project"],
)

# Whether a later operation with the same action and target has ended. If it has failed too, its own
# failure counts. Each target is searched in an index.
DONE_AGAIN = """EXISTS (
    SELECT FROM controlplane_operation later
    WHERE later.{target} = o.{target} AND later.action = o.action
        AND later.status IN ('finished', 'failed') AND later.not_run_because IS NULL
        AND later.created_at > o.created_at
)"""
# Of failed operations, those whose failure needs no attention any more: the same was done again,
# the branch is being deleted, or the endpoint or branch is deleted.
SUPERSEDED = f"""
SELECT o.id FROM controlplane_operation o
    LEFT JOIN controlplane_endpoint endpoint ON endpoint.id = o.endpoint_id
    LEFT JOIN controlplane_branch branch ON branch.id = o.branch_id
WHERE o.id = ANY(%s) AND (
    endpoint.deleted_at IS NOT NULL OR branch.deleted_at IS NOT NULL
    OR {DONE_AGAIN.format(target="endpoint_id")}
    OR o.endpoint_id IS NULL AND {DONE_AGAIN.format(target="branch_id")}
    OR o.branch_id IS NULL AND {DONE_AGAIN.format(target="project_id")}
    OR o.action <> 'delete_timeline' AND EXISTS (
        SELECT FROM controlplane_operation later
        WHERE later.branch_id = o.branch_id AND later.action = 'delete_timeline'
            AND later.created_at > o.created_at
    )
)
"""  # noqa: S608 # constants
NO_OPERATION = uuid.UUID(int=0)


def list_operations(
    account: Account,
    project_id: str,
    *,
    wanted: OperationFilter,
    cursor: str | None,
    limit: int,
    whole_chains: bool = False,
) -> list[Operation]:
    """At most `limit` of the operations that the filter selects, newest first, all older than
    `cursor`; without their steps. With `whole_chains`, also the others of their chains: in the
    project's order, the operations of a chain are next to each other, so no page splits one.

    Raises NotFound, and Invalid for a cursor that is not a time.
    """
    project = find_project(account, project_id)
    if cursor is not None:
        wanted = wanted.before(time_of(cursor, "cursor"))
    page = page_of(project.id, wanted, limit=limit)
    if whole_chains:
        page = chains_of(page)
    _mark_superseded(page)
    return page


def get_operation(account: Account, project_id: str, operation_id: str) -> Operation:
    """The project's operation with this id. Raises NotFound."""
    try:
        wanted = uuid.UUID(operation_id)
    except ValueError:
        wanted = NO_OPERATION
    operation = OWN_OPERATION.first(project=project_id, operation=wanted, account=account.id)
    if operation is None:
        find_project(account, project_id)
        raise NotFound("operation not found", fields=["operation_id"])
    _mark_superseded([operation])
    return operation


def _mark_superseded(operations: Sequence[Operation]) -> None:
    """Set `superseded` on those that have failed."""
    failed = [row for row in operations if row.status == OperationStatus.FAILED]
    if not failed:
        return
    with connection.cursor() as cursor:
        cursor.execute(SUPERSEDED, [[row.id for row in failed]])
        found = {row[0] for row in cursor.fetchall()}
    for row in failed:
        row.superseded = row.id in found


def cursor_of(operation: Operation) -> str:
    """The position of an operation in the list: its creation time in microseconds, without trailing
    zeros, which is the format that clients know.
    """
    text = operation.created_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
    return text.rstrip("0").rstrip(".") + "Z"
