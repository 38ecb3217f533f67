"""Operations: list and fetch (specification, section 4, calls 5, 6), cancel and retry a single one
or those of a whole chain."""

import time
from typing import Any

from ninja import Query

from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.listening import OPERATIONS, waiting_for
from controlplane.api.http.pagination import OperationQuery, OperationsQuery, page_of
from controlplane.api.http.request_limits import only_waiting
from controlplane.api.http.routing import Router
from controlplane.api.responses.operations import OneOperation, OperationsOut, OperationsPage
from controlplane.models import Operation
from controlplane.services import operations

router = Router(tags=["operations"])

OPERATION = "/projects/{project_id}/operations/{operation_id}"
CHAIN = "/projects/{project_id}/chains/{chain_id}"


@router.get(
    "/projects/{project_id}/operations",
    response=OperationsPage,
    summary="List a project's operations",
    description="The newest first, in pages. Filters can be combined. An unknown value is "
    "refused, with the list of allowed values. Only the response for a single "
    "operation contains its steps.",
)
def list_project_operations(
    request: AuthenticatedRequest, project_id: str, query: Query[OperationsQuery]
) -> dict[str, Any]:
    page = operations.list_operations(
        request.auth,
        project_id,
        wanted=query.as_filter(),
        cursor=query.cursor,
        limit=query.limit,
        whole_chains=query.whole_chains,
    )
    return page_of("operations", page, operations.cursor_of)


@router.get(
    OPERATION,
    response=OneOperation,
    summary="Get an operation with its steps",
    description="With `wait`, the response is sent when the operation has ended, or after that "
    "number of seconds. The operations of one request end one after the other, so to "
    "wait for all of them, wait for the last one.",
)
def get_project_operation(
    request: AuthenticatedRequest, project_id: str, operation_id: str, query: Query[OperationQuery]
) -> dict[str, Any]:
    deadline = time.monotonic() + query.wait
    operation = operations.get_operation(request.auth, project_id, operation_id)
    if query.wait and not operation.is_finished:
        operation = await_end(request, operation, deadline)
    return {"operation": operation}


def await_end(request: AuthenticatedRequest, operation: Operation, deadline: float) -> Operation:
    """Wait until the operation has ended, or until the deadline (on `time.monotonic`), and return
    it as it is then.

    Raises NotFound, TooManyRequests.
    """
    account, is_over = request.auth, False

    def look() -> Operation:
        return operations.get_operation(account, operation.project_id, str(operation.id))

    with waiting_for(OPERATIONS, str(operation.id)) as waiter:
        # Read the operation again: if it ended before the waiter existed, no notification will
        # come.
        fresh = look()
        while not fresh.is_finished and not is_over:
            with only_waiting(request, account.id):
                is_over = not waiter.wait(deadline - time.monotonic())
            fresh = look()
    return fresh


CANCEL = """\
An operation that has not begun is `cancelled` immediately, together with the operations after it in
its chain. A running operation and the rest of its chain are `cancelling` until its work has stopped
at a safe point, and are `cancelled` then. A copy is stopped and removed, a start or a check is
stopped, the previous configuration is restored, and a reassigned endpoint goes back to its previous
branch. The response has the cancelled operations; a repeated request gets the same response.

409 with the reason if there is nothing left to cancel, or if the work cannot be left unfinished: a
suspend or a deletion that has begun, the suspend of a disabled endpoint, or a reassignment that
cannot be reversed.
"""
RETRY = """\
Repeats the work of the operation, and of those after it in its chain that did not finish, as a new
chain of operations. `retry_of` of each is the operation that it repeats. While these are
unfinished, a repeated request gets the same response.

409 with the reason if a retry makes no sense any more: the operation has neither failed nor been
cancelled, its endpoint or branch was deleted or disabled, or a newer operation has done the same or
something else since.
"""


@router.post(
    OPERATION + "/cancel",
    response=OperationsOut,
    summary="Cancel an operation and those after it in its chain",
    description=CANCEL,
)
def cancel_project_operation(
    request: AuthenticatedRequest, project_id: str, operation_id: str
) -> dict[str, Any]:
    return {"operations": operations.cancel_operation(request.auth, project_id, operation_id)}


@router.post(
    OPERATION + "/retry",
    response={201: OperationsOut},
    summary="Retry a failed or cancelled operation",
    description=RETRY,
)
def retry_project_operation(
    request: AuthenticatedRequest, project_id: str, operation_id: str
) -> tuple[int, dict[str, Any]]:
    return 201, {"operations": operations.retry_operation(request.auth, project_id, operation_id)}


@router.post(
    CHAIN + "/cancel",
    response=OperationsOut,
    summary="Cancel the operations of a chain that can be cancelled",
    description=CANCEL,
)
def cancel_project_chain(
    request: AuthenticatedRequest, project_id: str, chain_id: str
) -> dict[str, Any]:
    return {"operations": operations.cancel_chain(request.auth, project_id, chain_id)}


@router.post(
    CHAIN + "/retry",
    response={201: OperationsOut},
    summary="Retry the failed and cancelled operations of a chain",
    description=RETRY,
)
def retry_project_chain(
    request: AuthenticatedRequest, project_id: str, chain_id: str
) -> tuple[int, dict[str, Any]]:
    return 201, {"operations": operations.retry_chain(request.auth, project_id, chain_id)}
