"""`/projects/{project_id}/branches/{branch_id}/history`, `history/resolve` and `time_travel`."""

from typing import Any

from ninja import Query

from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.routing import Router
from controlplane.api.requests.schemas import MomentQuery, TimeTravel
from controlplane.api.responses.endpoints import EndpointAndOperations
from controlplane.api.schemas import once_read
from controlplane.history import time_travel
from controlplane.history.responses import BranchHistory, ResolvedMoment, history_out
from controlplane.models import SchemaReading
from controlplane.services import branches, schemas
from controlplane.services.rules import history

router = Router(tags=["branches"])


@router.get(
    "/projects/{project_id}/branches/{branch_id}/history",
    response=BranchHistory,
    exclude_none=True,
    summary="Get a branch's history",
    description="Which past moments of the branch can be recovered, and what is kept for that.",
)
def get_project_branch_history(
    request: AuthenticatedRequest, project_id: str, branch_id: str
) -> dict[str, Any]:
    branch = branches.get_branch(request.auth, project_id, branch_id)
    return {"history": history_out(history.history_of(branch))}


@router.post(
    "/projects/{project_id}/branches/{branch_id}/time_travel",
    response={201: EndpointAndOperations},
    exclude_none=True,
    summary="Read a past moment",
    description="Creates an endpoint on a copy of the branch as it was at the moment. It has the "
    "branch's present passwords, or new ones if the branch is protected: `connection_uri` with its "
    "`endpoint_id` returns how to connect. Transactions are read-only unless a client requests "
    "otherwise. No list contains the endpoint, and it is deleted once it has been suspended.",
)
def travel_in_time(
    request: AuthenticatedRequest, project_id: str, branch_id: str, body: TimeTravel
) -> tuple[int, dict[str, Any]]:
    created = time_travel.travel(request.auth, project_id, branch_id, body.moment)
    return 201, {"endpoint": created.endpoint, "operations": created.operations}


@router.get(
    "/projects/{project_id}/branches/{branch_id}/history/resolve",
    response=ResolvedMoment,
    exclude_none=True,
    summary="Resolve a past moment",
    description="The commits around a moment, and how much log a branch of the moment replays. "
    "Nothing is created.",
)
def resolve_project_branch_moment(
    request: AuthenticatedRequest, project_id: str, branch_id: str, query: Query[MomentQuery]
) -> dict[str, Any]:
    def begin() -> list[SchemaReading]:
        return [schemas.begin_resolving(request.auth, project_id, branch_id, query.moment)]

    (answer,) = once_read(request, begin)
    found = schemas.moment_in(answer)
    return {"moment": {"branch_id": branch_id, "timestamp": query.timestamp, **found}}
