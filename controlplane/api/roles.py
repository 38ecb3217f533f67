"""`/projects/{project_id}/branches/{branch_id}/roles`. A role is identified by its name."""

from typing import Any

from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.routing import Router
from controlplane.api.requests.catalog import CreateRole
from controlplane.api.responses.catalog import OneRole, Password, RoleAndOperations, Roles
from controlplane.models import Operation, Role
from controlplane.services import catalog

router = Router(tags=["roles"])

ROLES = "/projects/{project_id}/branches/{branch_id}/roles"
ROLE = ROLES + "/{role_name}"


@router.get(ROLES, response=Roles, exclude_none=True)
def list_project_branch_roles(
    request: AuthenticatedRequest, project_id: str, branch_id: str
) -> dict[str, Any]:
    """Lists the branch's roles, without their passwords."""
    return {"roles": catalog.list_roles(request.auth, project_id, branch_id)}


@router.post(ROLES, response={201: RoleAndOperations}, exclude_none=True)
def create_project_branch_role(
    request: AuthenticatedRequest, project_id: str, branch_id: str, body: CreateRole
) -> tuple[int, dict[str, Any]]:
    """Creates a role with a new password, which the response contains. The role exists in Postgres
    once the operations have finished."""
    made = catalog.create_role(
        request.auth, project_id, branch_id, name=body.role.name, no_login=body.role.no_login
    )
    return 201, _with_password(*made)


@router.get(ROLE, response=OneRole, exclude_none=True)
def get_project_branch_role(
    request: AuthenticatedRequest, project_id: str, branch_id: str, role_name: str
) -> dict[str, Any]:
    """Returns the role with this name, without its password."""
    return {"role": catalog.get_role(request.auth, project_id, branch_id, role_name)}


@router.delete(ROLE, response=RoleAndOperations, exclude_none=True)
def delete_project_branch_role(
    request: AuthenticatedRequest, project_id: str, branch_id: str, role_name: str
) -> dict[str, Any]:
    """Deletes the role permanently. Refused for a role that owns a database. What it owns goes to
    the owner of its database; its functions and views run as whoever uses them from then on."""
    role, operations = catalog.delete_role(request.auth, project_id, branch_id, role_name)
    return {"role": role, "operations": operations}


@router.get(ROLE + "/reveal_password", response=Password)
def get_project_branch_role_password(
    request: AuthenticatedRequest, project_id: str, branch_id: str, role_name: str
) -> dict[str, Any]:
    """Returns the role's password, if the project stores passwords (`store_passwords`)."""
    password = catalog.reveal_password(request.auth, project_id, branch_id, role_name)
    return {"password": password}


@router.post(ROLE + "/reveal_password", response=Password)
def reveal_project_branch_role_password(
    request: AuthenticatedRequest, project_id: str, branch_id: str, role_name: str
) -> dict[str, Any]:
    """The same as `GET`, for a widely used client that sends `POST`."""
    return get_project_branch_role_password(request, project_id, branch_id, role_name)


@router.post(ROLE + "/reset_password", response=RoleAndOperations, exclude_none=True)
def reset_project_branch_role_password(
    request: AuthenticatedRequest, project_id: str, branch_id: str, role_name: str
) -> dict[str, Any]:
    """Gives the role a new password, which the response contains. The old password is no longer
    accepted, and the role's open sessions end."""
    return _with_password(*catalog.reset_password(request.auth, project_id, branch_id, role_name))


def _with_password(role: Role, password: str, operations: list[Operation]) -> dict[str, Any]:
    role.password = password
    return {"role": role, "operations": operations}
