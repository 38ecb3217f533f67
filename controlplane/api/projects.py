"""`/projects`."""

from dataclasses import asdict
from typing import Any

from ninja import Query

from controlplane.api.auth import AuthenticatedRequest
from controlplane.api.pagination import ConnectionQuery, ProjectsQuery
from controlplane.api.reach import check_passwords
from controlplane.api.requests.projects import CreateProject, UpdateProject
from controlplane.api.responses.connections import ConnectionUri
from controlplane.api.responses.projects import (
    CreatedProject,
    OneProject,
    OneProjectsLimits,
    ProjectAndOperations,
    ProjectsPage,
    ProjectStates,
    RecoveredProject,
)
from controlplane.api.responses.shared import UNLIMITED, as_limit
from controlplane.api.routing import Router
from controlplane.services import (
    connections,
    project_changes,
    project_states,
    projects,
    recovery,
)
from controlplane.services.connections import Connection, connection_to
from controlplane.services.project_settings import MOST_ALLOWED_IPS

router = Router(tags=["projects"])


@router.get("/projects", response=ProjectsPage, exclude_none=True)
def list_projects(request: AuthenticatedRequest, query: Query[ProjectsQuery]) -> dict[str, Any]:
    """The account's projects, the newest first. `pagination.cursor` of one page asks for the next;
    it is
    there as long as the page is not empty."""
    page = projects.list_projects(
        request.auth,
        after=query.cursor,
        limit=query.limit,
        search=query.search,
        recoverable=query.recoverable,
        only=request.api_key.project_id,
        org_id=query.org_id,
        within=query.timeout / 1000 if query.timeout else None,
    )
    answer: dict[str, Any] = {"projects": page}
    if page:
        answer["pagination"] = {"cursor": page[-1].id}
    return answer


@router.get("/projects/shared", response=ProjectsPage, exclude_none=True)
def list_shared_projects(request: AuthenticatedRequest) -> dict[str, Any]:
    """Projects that others share with the caller: there is no sharing here."""
    return {"projects": []}


@router.post("/projects", response={201: CreatedProject}, exclude_none=True)
def create_project(
    request: AuthenticatedRequest, body: CreateProject
) -> tuple[int, dict[str, Any]]:
    """A project with its default branch, that branch's endpoint, a role and a database. Only this
    answer holds the password and a connection string. It is ready once the last operation has
    finished."""
    created = projects.create_project(request.auth, body.project.spec())
    created.role.password = created.password
    connection = connection_to(
        created.endpoint, created.role, created.database, password=created.password
    )
    return 201, {
        "project": created.project,
        "connection_uris": [connection_details(connection)],
        "roles": [created.role],
        "databases": [created.database],
        "operations": created.operations,
        "branch": created.branch,
        "endpoints": [created.endpoint],
    }


@router.get(
    "/projects/states",
    response=ProjectStates,
    summary="List how the projects fare",
    description="Of all projects at once, how many endpoints are in each state and how many "
    "operations have not ended. Projects without either are not among them.",
)
def list_project_states(request: AuthenticatedRequest) -> dict[str, Any]:
    return {"projects": project_states.list_project_states(request.auth)}


@router.get("/projects/{project_id}", response=OneProject, exclude_none=True)
def get_project(request: AuthenticatedRequest, project_id: str) -> dict[str, Any]:
    """The project, with what its branches have used."""
    return {"project": projects.get_project(request.auth, project_id)}


@router.get("/projects/{project_id}/limits", response=OneProjectsLimits)
def get_project_limits(request: AuthenticatedRequest, project_id: str) -> dict[str, Any]:
    """What the account's plan allows; -1 is no limit."""
    projects.find_project(request.auth, project_id)
    limits = request.auth.limits
    return {
        "limits": {
            "active_time": UNLIMITED,
            "cpu_seconds": UNLIMITED,
            "max_projects": as_limit(limits.projects),
            "max_branches": as_limit(limits.branches_of_project),
            "max_autoscaling_cu": limits.largest_compute,
            "max_active_endpoints": as_limit(limits.endpoints_of_project),
            "max_read_only_endpoints": 0,
            "max_allowed_ips": MOST_ALLOWED_IPS,
        }
    }


@router.patch("/projects/{project_id}", response=ProjectAndOperations, exclude_none=True)
def update_project(
    request: AuthenticatedRequest, project_id: str, body: UpdateProject
) -> dict[str, Any]:
    """Changes what is sent and leaves the rest; `settings` are merged key by key."""
    project, operations = project_changes.update_project(
        request.auth, project_id, body.project.changes()
    )
    return {"project": project, "operations": operations}


@router.delete("/projects/{project_id}", response=OneProject, exclude_none=True)
def delete_project(request: AuthenticatedRequest, project_id: str) -> dict[str, Any]:
    """For good, with all that is in it: at once for callers, its data by an operation. Deleting it
    again answers the same."""
    return {"project": projects.delete_project(request.auth, project_id)}


@router.post(
    "/projects/{project_id}/recover",
    response=RecoveredProject,
    exclude_none=True,
    summary="Recover a deleted project",
    description="With its branches, endpoints, settings and connection strings, until its "
    "`recoverable_until`. Its endpoints are idle then.",
)
def recover_project(request: AuthenticatedRequest, project_id: str) -> dict[str, Any]:
    project, branches = recovery.recover_project(request.auth, project_id)
    return {"project": project, "branches": branches}


def connection_details(connection: Connection) -> dict[str, Any]:
    parameters = asdict(connection)
    return {"connection_uri": parameters.pop("uri"), "connection_parameters": parameters}


@router.get(
    "/projects/{project_id}/connection_uri",
    response=ConnectionUri,
    operation_id="getConnectionURI",
)
def get_connection_uri(
    request: AuthenticatedRequest, project_id: str, query: Query[ConnectionQuery]
) -> dict[str, Any]:
    """A connection string with the role's password, for a branch's endpoint.

    Every driver connects with it as it is, but for those that take `sslmode=require` for
    `verify-full`, as node-postgres and Prisma do, where the service's own authority signs: they
    trust `/certificate-authority.pem`, or are given `uselibpqcompat=true`.

    `password=false` leaves it out: nothing secret is read then, which a key that only reads may do,
    and which is no `role.password_revealed`."""
    if query.password:
        check_passwords(request.api_key)
    found = connections.find_connection(
        request.auth,
        project_id,
        branch_id=query.branch_id,
        endpoint_id=query.endpoint_id,
        role_name=query.role_name,
        database_name=query.database_name,
        pooled=query.pooled,
        with_password=query.password,
    )
    return {"uri": found.uri}
