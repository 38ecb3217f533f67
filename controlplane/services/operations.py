"""Operations for callers: lists with a cursor, and single operations (rules 5 and 6)."""

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

from controlplane.compute.steps import Step as Step
from controlplane.models import Account, Operation
from controlplane.models.operation_pages import OperationFilter, page_of
from controlplane.models.reading import Reading
from controlplane.operations.actions import details_of
from controlplane.operations.details import CreateBranchDetails
from controlplane.operations.step_history import steps_of as steps_of
from controlplane.services.errors import NotFound
from controlplane.services.history import lsn_text
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


NO_OPERATION = uuid.UUID(int=0)


def list_operations(
    account: Account,
    project_id: str,
    *,
    wanted: OperationFilter,
    cursor: str | None,
    limit: int,
) -> list[Operation]:
    """At most `limit` of the operations that the filter selects, newest first, all older than
    `cursor`; without their steps.

    Raises NotFound, and Invalid for a cursor that is not a time.
    """
    project = find_project(account, project_id)
    if cursor is not None:
        wanted = wanted.before(time_of(cursor, "cursor"))
    return page_of(project.id, wanted, limit=limit)


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
    return operation


@dataclass(frozen=True)
class Past:
    """The past moment that an operation makes a branch of: a time or a position in the log."""

    # The branch whose past it is.
    branch_id: str | None
    timestamp: datetime | None
    lsn: str | None
    # Whether no list has the branch that is made.
    hidden: bool


def past_of(operation: Operation) -> Past | None:
    """Return the past moment that the operation makes a branch of; None if it makes none."""
    details = details_of(operation.action, operation.details)
    if not isinstance(details, CreateBranchDetails) or not details.names_moment:
        return None
    at, lsn = details.at_time, details.at_lsn
    return Past(
        branch_id=details.source_branch_id,
        timestamp=datetime.fromisoformat(at) if at else None,
        lsn=None if lsn is None else lsn_text(lsn),
        hidden=details.is_hidden,
    )


def is_reset(operation: Operation) -> bool:
    """Return whether the operation resets its branch: replaces its data by its parent's."""
    details = details_of(operation.action, operation.details)
    return isinstance(details, CreateBranchDetails) and details.from_parent


def cursor_of(operation: Operation) -> str:
    """The position of an operation in the list: its creation time in microseconds, without trailing
    zeros, which is the format that clients know.
    """
    text = operation.created_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
    return text.rstrip("0").rstrip(".") + "Z"
