"""`/projects`."""

from dataclasses import asdict
from typing import Any

from ninja import Query

from controlplane.api.http.auth import AuthenticatedRequest, check_passwords
from controlplane.api.http.pagination import (
    ConnectionQuery,
    ProjectsQuery,
    SharedProjectsQuery,
    page_of,
)
from controlplane.api.http.routing import Router
from controlplane.api.requests.projects import CreateProject, UpdateProject
from controlplane.api.responses.branches import ConnectionUri
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
from controlplane.services import connections, project_changes, projects
from controlplane.services.connections import Connection, connection_to
from controlplane.services.monitoring import dashboard
from controlplane.services.rules.placement import largest_endpoint
from controlplane.services.rules.project_settings import MAX_ALLOWED_IPS

router = Router(tags=["projects"])

PROJECT = "/projects/{project_id}"


@router.get("/projects", response=ProjectsPage)
def list_projects(request: AuthenticatedRequest, query: Query[ProjectsQuery]) -> dict[str, Any]:
    """Lists the account's projects, newest first. To get the next page, send the
    `pagination.cursor` of this one as `cursor`. It is present on every page that is not empty."""
    page = projects.list_projects(
        request.auth,
        after=query.cursor,
        limit=query.limit,
        search=query.search,
        recoverable=query.recoverable,
        only=request.api_key.project_id,
        org_id=query.org_id,
        timeout=query.timeout / 1000 if query.timeout else None,
    )
    return page_of("projects", page, lambda last: last.id)


@router.get("/projects/shared", response=ProjectsPage)
def list_shared_projects(
    request: AuthenticatedRequest, query: Query[SharedProjectsQuery]
) -> dict[str, Any]:
    """Lists the projects that others share with the caller. Always empty, as projects cannot be
    shared."""
    return {"projects": []}


@router.post("/projects", response={201: CreatedProject})
def create_project(
    request: AuthenticatedRequest, body: CreateProject
) -> tuple[int, dict[str, Any]]:
    """Creates a project with a default branch, and that branch's endpoint, role and database. The
    response contains the role's password and a connection string; if the project does not store
    passwords, no other response does. The project is ready once the last of the operations has
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
    summary="List the states of the projects",
    description="For all projects: the number of endpoints in each state, and the number of "
    "unfinished operations. Projects without either are left out.",
)
def list_project_states(request: AuthenticatedRequest) -> dict[str, Any]:
    return {"projects": dashboard.list_project_states(request.auth)}


@router.get(PROJECT, response=OneProject)
def get_project(request: AuthenticatedRequest, project_id: str) -> dict[str, Any]:
    """Returns the project, with what its branches have consumed."""
    return {"project": projects.get_project(request.auth, project_id)}


@router.get(PROJECT + "/limits", response=OneProjectsLimits)
def get_project_limits(request: AuthenticatedRequest, project_id: str) -> dict[str, Any]:
    """Returns the limits of the account's plan, and of the hosts of the project's region. -1 stands
    for no limit."""
    project = projects.find_project(request.auth, project_id)
    limits = request.auth.limits
    return {
        "limits": {
            "active_time": UNLIMITED,
            "cpu_seconds": UNLIMITED,
            "max_projects": as_limit(limits.projects),
            "max_branches": as_limit(limits.branches_of_project),
            "max_autoscaling_cu": min(limits.largest_compute, largest_endpoint(project)),
            "max_active_endpoints": as_limit(limits.endpoints_of_project),
            "max_read_only_endpoints": 0,
            "max_allowed_ips": MAX_ALLOWED_IPS,
        }
    }


@router.patch(PROJECT, response=ProjectAndOperations)
def update_project(
    request: AuthenticatedRequest, project_id: str, body: UpdateProject
) -> dict[str, Any]:
    """Changes the fields that are sent. Other fields keep their values; `settings` are merged key
    by key."""
    project, operations = project_changes.update_project(
        request.auth, project_id, body.project.changes()
    )
    return {"project": project, "operations": operations}


@router.delete(PROJECT, response=OneProject)
def delete_project(request: AuthenticatedRequest, project_id: str) -> dict[str, Any]:
    """Deletes the project with everything in it. It disappears from the API at once, and an
    operation deletes its data. If the server keeps deleted projects, the project can be recovered
    until `recoverable_until`, and its data is deleted after that. Deleting the project again gives
    the same response. A project with a protected branch is not deleted."""
    return {"project": projects.delete_project(request.auth, project_id)}


@router.post(
    PROJECT + "/recover",
    response=RecoveredProject,
    summary="Recover a deleted project",
    description="Recovers the project with its branches, endpoints, settings and connection "
    "strings. Possible until its `recoverable_until`. The recovered endpoints are "
    "idle.",
)
def recover_project(request: AuthenticatedRequest, project_id: str) -> dict[str, Any]:
    project, branches = project_changes.recover_project(request.auth, project_id)
    return {"project": project, "branches": branches}


def connection_details(connection: Connection) -> dict[str, Any]:
    parameters = asdict(connection)
    return {"connection_uri": parameters.pop("uri"), "connection_parameters": parameters}


@router.get(PROJECT + "/connection_uri", response=ConnectionUri, operation_id="getConnectionURI")
def get_connection_uri(
    request: AuthenticatedRequest, project_id: str, query: Query[ConnectionQuery]
) -> dict[str, Any]:
    """Returns a connection string for a branch's endpoint, with the role's password.

    Drivers connect with the string as it is, with one exception: node-postgres and Prisma treat
    `sslmode=require` as `verify-full`. If the service's own certificate authority signs the
    certificates, these drivers must trust `/certificate-authority.pem`, or the string needs
    `uselibpqcompat=true`.

    With `password=false` the string has no password. As no secret is read then, a read-only API key
    may request it, and no event `role.password_revealed` is recorded. Otherwise one is, unless the
    same key has read the same password from the same address within an hour."""
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
