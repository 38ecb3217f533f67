"""Operations for callers: lists with a filter and a cursor, single operations (rules 5 and 6), and
cancelling and retrying one with the later ones of its chain, or a whole chain."""

import re
import uuid
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from django.db import connection

from controlplane.actors import Actor, ActorType, acting_as, current_actor
from controlplane.compute.host.steps import Step as Step
from controlplane.events.changes import cancelling_requested, operation_retried
from controlplane.events.recording import record
from controlplane.models import GIVEN_UP, Account, Action, Operation, OperationStatus, Project
from controlplane.models.operation_pages import OperationFilter, chains_of, page_of
from controlplane.models.reading import Reading
from controlplane.operations.engine.cancelling import GIVING_UP, cancel, cancel_refusal
from controlplane.operations.engine.scheduling import schedule
from controlplane.operations.engine.step_history import steps_of as steps_of
from controlplane.services.errors import Conflict, Invalid, NotFound
from controlplane.services.projects import changing_project, find_project
from controlplane.services.retrying import retries_of, steps_again

# The largest number of ids in one filter. It is small, because each id is searched separately.
MAX_IDS = 20

Value = TypeVar("Value")


def filter_of(
    *,
    action: str = "",
    status: str = "",
    initiator: str = "",
    endpoint_id: str = "",
    branch_id: str = "",
    chain_id: str = "",
    since: str = "",
    until: str = "",
) -> OperationFilter:
    """Parse the filter; an empty value does not restrict it. Raises Invalid for values that no
    operation can have."""
    return OperationFilter(
        actions=_known("action", action, Action.values),
        statuses=_known("status", status, OperationStatus.values),
        initiators=_known("initiator", initiator, [str(one) for one in ActorType]),
        endpoint_ids=_ids("endpoint_id", endpoint_id, _like("ep-")),
        branch_ids=_ids("branch_id", branch_id, _like("br-")),
        chain_ids=_ids("chain_id", chain_id, uuid.UUID),
        since=time_of(since, "since") if since else None,
        until=time_of(until, "until") if until else None,
    )


def time_of(text: str, name: str) -> datetime:
    """Parse an ISO 8601 time with a time zone; the result is in UTC. Raises Invalid."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(
            f"invalid {name}: not a timestamp such as 2026-01-02T03:04:05Z", fields=[name]
        ) from None
    if time.tzinfo is None:
        raise Invalid(f"invalid {name}: the time zone is missing", fields=[name])
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise Invalid(f"invalid {name}: out of range", fields=[name]) from None


def _parts(text: str) -> list[str]:
    """The distinct parts, in the order in which they first occur."""
    return list(dict.fromkeys(part for one in text.split(",") if (part := one.strip())))


def _known(name: str, text: str, values: Collection[str]) -> list[str]:
    found = _parts(text)
    for one in found:
        if one not in values:
            raise Invalid(
                f'{name}: unknown value "{one[:64]}"; use one of: {", ".join(values)}',
                fields=[name],
            )
    return found


def _ids(name: str, text: str, read: Callable[[str], Value]) -> list[Value]:
    found = _parts(text)
    if len(found) > MAX_IDS:
        raise Invalid(f"{name}: at most {MAX_IDS} ids are allowed", fields=[name])
    try:
        return list(dict.fromkeys(read(one) for one in found))
    except ValueError as error:
        raise Invalid(f"{name}: invalid id: {str(error)[:64]}", fields=[name]) from None


def _like(prefix: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not re.fullmatch(f"{prefix}[a-z0-9-]{{1,57}}", text):
            raise ValueError(f'"{text}" is not like {prefix}quiet-heron-123456')
        return text

    return read


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
    wanted = _uuid(operation_id)
    operation = wanted and OWN_OPERATION.first(
        project=project_id, operation=wanted, account=account.id
    )
    if not operation:
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


def cancel_operation(account: Account, project_id: str, operation_id: str) -> list[Operation]:
    """Cancel the operation, and those after it in its chain that can be cancelled. Returns those
    that are or were cancelled. If the operation was cancelled before, return the same. Raises
    NotFound, Locked, Conflict if the operation cannot be cancelled."""
    with changing_project(account, project_id) as project:
        tail = _from(project, operation_id)
        if tail[0].status not in GIVING_UP:
            if reason := cancel_refusal(tail[0]):
                raise Conflict(reason)
            _cancel(project, [tail[0], *(row for row in tail[1:] if not cancel_refusal(row))])
        return _given_up(tail)


def cancel_chain(account: Account, project_id: str, chain_id: str) -> list[Operation]:
    """Cancel the operations of the chain that can be cancelled. Returns those that are or were
    cancelled.

    Raises NotFound, Locked, Conflict if there are none.
    """
    with changing_project(account, project_id) as project:
        chain = _chain(project, chain_id)
        reasons = {row.id: cancel_refusal(row) for row in chain}
        if wanted := [row for row in chain if reasons[row.id] is None]:
            _cancel(project, wanted)
        if concerned := _given_up(chain):
            return concerned
        # Give the reason for the first unfinished operation, not for one that has ended before it.
        open_ones = [row for row in chain if not row.is_finished]
        raise Conflict(
            reasons[open_ones[0].id] or "" if open_ones else "this run has already ended"
        )


def retry_operation(account: Account, project_id: str, operation_id: str) -> list[Operation]:
    """Retry the operation, and those after it in its chain that failed or were cancelled. Returns
    the new operations. While these are unfinished, a second call returns the same.

    Raises NotFound, Conflict, Locked, and everything that a request for the same work would raise.
    """
    with changing_project(account, project_id) as project:
        tail = _from(project, operation_id)
        if tail[0].status not in GIVEN_UP:
            raise Conflict(
                f"only an operation that has failed or was cancelled can be retried; this one is "
                f"{tail[0].status}"
            )
        return _retry(project, [row for row in tail if row.status in GIVEN_UP])


def retry_chain(account: Account, project_id: str, chain_id: str) -> list[Operation]:
    """As `retry_operation`, for the first operation of the chain that failed or was cancelled."""
    with changing_project(account, project_id) as project:
        chain = _chain(project, chain_id)
        if not all(row.is_finished for row in chain):
            raise Conflict("the chain's operations have not ended yet")
        given_up = [row for row in chain if row.status in GIVEN_UP]
        if not given_up:
            raise Conflict("the chain's operations have all finished")
        return _retry(project, given_up)


def _cancel(project: Project, operations: Sequence[Operation]) -> None:
    cancel(project, operations)
    record(cancelling_requested(project, operations))


def _retry(project: Project, operations: Sequence[Operation]) -> list[Operation]:
    first = operations[0]
    if under_way := retries_of(first):
        return under_way
    actor = current_actor()
    retrying = Actor(ActorType.RETRY, actor.name, actor.api_key_id, actor.address)
    steps = steps_again(project, operations)
    with acting_as(retrying):
        made = schedule(project, steps, first.kind, title=first.title)
    record(operation_retried(project, first, made))
    return made


def _from(project: Project, operation_id: str) -> list[Operation]:
    """The operation and those after it in its chain, oldest first. Raises NotFound."""
    wanted = _uuid(operation_id)
    operation = wanted and Operation.objects.filter(project=project, id=wanted).first()
    if not operation:
        raise NotFound("operation not found", fields=["operation_id"])
    chain = _operations_of(project, operation.chain)
    return [row for row in chain if row.created_at >= operation.created_at]


def _chain(project: Project, chain_id: str) -> list[Operation]:
    """All operations of the chain, oldest first. Raises NotFound."""
    wanted = _uuid(chain_id)
    chain = _operations_of(project, wanted) if wanted else []
    if not chain:
        raise NotFound("chain not found", fields=["chain_id"])
    return chain


def _operations_of(project: Project, chain: uuid.UUID) -> list[Operation]:
    rows = Operation.objects.filter(project=project, chain=chain)
    return list(rows.select_related("branch", "endpoint__branch").order_by("created_at"))


def _given_up(operations: Sequence[Operation]) -> list[Operation]:
    ids = [row.id for row in operations]
    given_up = Operation.objects.filter(id__in=ids, status__in=GIVING_UP)
    return list(given_up.order_by("created_at"))


def _uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
