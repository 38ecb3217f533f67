"""Cancelling and retrying operations: a single one, or those of a whole chain."""

from typing import Any

from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.routing import Router
from controlplane.api.responses.operations import OperationsOut
from controlplane.services import operations

router = Router(tags=["operations"])

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
    "/projects/{project_id}/operations/{operation_id}/cancel",
    response=OperationsOut,
    exclude_none=True,
    summary="Cancel an operation and those after it in its chain",
    description=CANCEL,
)
def cancel_project_operation(
    request: AuthenticatedRequest, project_id: str, operation_id: str
) -> dict[str, Any]:
    return {"operations": operations.cancel_operation(request.auth, project_id, operation_id)}


@router.post(
    "/projects/{project_id}/operations/{operation_id}/retry",
    response={201: OperationsOut},
    exclude_none=True,
    summary="Retry a failed or cancelled operation",
    description=RETRY,
)
def retry_project_operation(
    request: AuthenticatedRequest, project_id: str, operation_id: str
) -> tuple[int, dict[str, Any]]:
    return 201, {"operations": operations.retry_operation(request.auth, project_id, operation_id)}


@router.post(
    "/projects/{project_id}/chains/{chain_id}/cancel",
    response=OperationsOut,
    exclude_none=True,
    summary="Cancel the operations of a chain that can be cancelled",
    description=CANCEL,
)
def cancel_project_chain(
    request: AuthenticatedRequest, project_id: str, chain_id: str
) -> dict[str, Any]:
    return {"operations": operations.cancel_chain(request.auth, project_id, chain_id)}


@router.post(
    "/projects/{project_id}/chains/{chain_id}/retry",
    response={201: OperationsOut},
    exclude_none=True,
    summary="Retry the failed and cancelled operations of a chain",
    description=RETRY,
)
def retry_project_chain(
    request: AuthenticatedRequest, project_id: str, chain_id: str
) -> tuple[int, dict[str, Any]]:
    return 201, {"operations": operations.retry_chain(request.auth, project_id, chain_id)}
