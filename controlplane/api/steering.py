"""Cancelling and retrying operations: a single one, or those of a whole chain."""

from typing import Any

from controlplane.api.auth import AuthenticatedRequest
from controlplane.api.responses.operations import OperationsOut
from controlplane.api.routing import Router
from controlplane.services import steering

router = Router(tags=["operations"])

CANCEL = """\
What has not begun ends `cancelled` at once, and so does what comes after it in its chain. What
runs is `cancelling`, and the rest of its chain with it, until it has been brought to a safe point;
then all are `cancelled`. A copy is stopped and removed, a start or a check is stopped, a new
configuration gives way to the one before, a reassigned endpoint goes back to the branch that it
left. Answers with the operations that were concerned; sent again, it answers the same.

409 with the reason where there is nothing to cancel any more, or where it cannot be left half-done:
a suspend or a deletion that has begun, the suspend of a disabled endpoint, a reassignment whose
way back is barred.
"""
RETRY = """\
Does the work anew, with what came after it in its chain and did not finish, as a new chain of
operations. Each has in `retry_of` the one whose work it does. Sent again while these are under
way, it answers with the same.

409 with the reason where that makes no sense any more: the operation has not failed and was not
cancelled, what it is about was deleted or disabled, or a newer operation has done the same or
something else since.
"""


@router.post(
    "/projects/{project_id}/operations/{operation_id}/cancel",
    response=OperationsOut,
    exclude_none=True,
    summary="Cancel an operation, and what comes after it in its chain",
    description=CANCEL,
)
def cancel_project_operation(
    request: AuthenticatedRequest, project_id: str, operation_id: str
) -> dict[str, Any]:
    return {"operations": steering.cancel_operation(request.auth, project_id, operation_id)}


@router.post(
    "/projects/{project_id}/operations/{operation_id}/retry",
    response={201: OperationsOut},
    exclude_none=True,
    summary="Try a failed or cancelled operation again",
    description=RETRY,
)
def retry_project_operation(
    request: AuthenticatedRequest, project_id: str, operation_id: str
) -> tuple[int, dict[str, Any]]:
    return 201, {"operations": steering.retry_operation(request.auth, project_id, operation_id)}


@router.post(
    "/projects/{project_id}/chains/{chain_id}/cancel",
    response=OperationsOut,
    exclude_none=True,
    summary="Cancel what can be cancelled of a chain of operations",
    description=CANCEL,
)
def cancel_project_chain(
    request: AuthenticatedRequest, project_id: str, chain_id: str
) -> dict[str, Any]:
    return {"operations": steering.cancel_chain(request.auth, project_id, chain_id)}


@router.post(
    "/projects/{project_id}/chains/{chain_id}/retry",
    response={201: OperationsOut},
    exclude_none=True,
    summary="Try again what has failed or was cancelled of a chain of operations",
    description=RETRY,
)
def retry_project_chain(
    request: AuthenticatedRequest, project_id: str, chain_id: str
) -> tuple[int, dict[str, Any]]:
    return 201, {"operations": steering.retry_chain(request.auth, project_id, chain_id)}
