"""Operations as callers see them: listed by cursor, fetched one by one (rules 5 and 6)."""

import uuid
from datetime import UTC, datetime

from controlplane.compute.steps import Step as Step
from controlplane.models import Account, Operation
from controlplane.operations.story import steps_of as steps_of
from controlplane.services.errors import Invalid, NotFound
from controlplane.services.projects import find_project


def list_operations(
    account: Account, project_id: str, *, cursor: str | None, limit: int
) -> list[Operation]:
    """At most `limit` operations, newest first, all older than `cursor`.

    Raises NotFound, Invalid for a cursor that no page ever carried.
    """
    project = find_project(account, project_id)
    operations = Operation.objects.filter(project=project)
    if cursor is not None:
        operations = operations.filter(created_at__lt=_time_of(cursor))
    return list(operations.order_by("-created_at")[:limit])


def get_operation(account: Account, project_id: str, operation_id: str) -> Operation:
    """Raises NotFound."""
    project = find_project(account, project_id)
    try:
        wanted = uuid.UUID(operation_id)
    except ValueError:
        raise NotFound("operation not found") from None
    operation = Operation.objects.filter(project=project, id=wanted).first()
    if operation is None:
        raise NotFound("operation not found")
    return operation


def cursor_of(operation: Operation) -> str:
    """The place of an operation in the list: its creation time to the microsecond.

    Trailing zeros are trimmed, as clients have seen.
    """
    text = operation.created_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
    return text.rstrip("0").rstrip(".") + "Z"


def _time_of(cursor: str) -> datetime:
    try:
        time = datetime.fromisoformat(cursor)
    except ValueError:
        raise Invalid("invalid cursor: not a timestamp of an earlier page") from None
    if time.tzinfo is None:
        raise Invalid("invalid cursor: the time zone is missing")
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise Invalid("invalid cursor: out of range") from None
