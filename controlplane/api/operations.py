"""`/projects/{project_id}/operations`: list and fetch (specification, section 4, calls 5, 6)."""

from typing import Any

from ninja import Query, Router

from controlplane.api.auth import AuthenticatedRequest
from controlplane.api.pagination import OperationsQuery
from controlplane.api.responses import OneOperation, OperationsPage
from controlplane.services import operations

router = Router(tags=["operations"])


@router.get("/projects/{project_id}/operations", response=OperationsPage, exclude_none=True)
def list_operations(
    request: AuthenticatedRequest, project_id: str, query: Query[OperationsQuery]
) -> dict[str, Any]:
    page = operations.list_operations(
        request.auth, project_id, cursor=query.cursor, limit=query.limit
    )
    answer: dict[str, Any] = {"operations": page}
    if page:
        answer["pagination"] = {"cursor": operations.cursor_of(page[-1])}
    return answer


@router.get(
    "/projects/{project_id}/operations/{operation_id}", response=OneOperation, exclude_none=True
)
def get_operation(
    request: AuthenticatedRequest, project_id: str, operation_id: str
) -> dict[str, Any]:
    return {"operation": operations.get_operation(request.auth, project_id, operation_id)}
