"""`/projects/{project_id}/branches/{branch_id}/roles` and `/databases`, whose ids are names."""

from typing import Any

from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.routing import Router
from controlplane.api.requests.branches import CreateDatabase, CreateRole, UpdateDatabase
from controlplane.api.responses.branches import (
    DatabaseAndOperations,
    Databases,
    OneDatabase,
    OneRole,
    Password,
    RoleAndOperations,
    Roles,
)
from controlplane.models import Database, Operation, Role
from controlplane.services import catalog

roles = Router(tags=["roles"])

ROLES = "/projects/{project_id}/branches/{branch_id}/roles"
ROLE = ROLES + "/{role_name}"


@roles.get(ROLES, response=Roles)
def list_project_branch_roles(
    request: AuthenticatedRequest, project_id: str, branch_id: str
) -> dict[str, Any]:
    """Lists the branch's roles, without their passwords."""
    return {"roles": catalog.list_roles(request.auth, project_id, branch_id)}


@roles.post(ROLES, response={201: RoleAndOperations})
def create_project_branch_role(
    request: AuthenticatedRequest, project_id: str, branch_id: str, body: CreateRole
) -> tuple[int, dict[str, Any]]:
    """Creates a role with a new password, which the response contains. The role exists in Postgres
    once the operations have finished."""
    made = catalog.create_role(
        request.auth, project_id, branch_id, name=body.role.name, no_login=body.role.no_login
    )
    return 201, _with_password(*made)


@roles.get(ROLE, response=OneRole)
def get_project_branch_role(
    request: AuthenticatedRequest, project_id: str, branch_id: str, role_name: str
) -> dict[str, Any]:
    """Returns the role with this name, without its password."""
    return {"role": catalog.get_role(request.auth, project_id, branch_id, role_name)}


@roles.delete(ROLE, response=RoleAndOperations)
def delete_project_branch_role(
    request: AuthenticatedRequest, project_id: str, branch_id: str, role_name: str
) -> dict[str, Any]:
    """Deletes the role permanently. Refused for a role that owns a database. What it owns goes to
    the owner of its database; its functions and views run as whoever uses them from then on."""
    role, operations = catalog.delete_role(request.auth, project_id, branch_id, role_name)
    return {"role": role, "operations": operations}


@roles.get(ROLE + "/reveal_password", response=Password)
def get_project_branch_role_password(
    request: AuthenticatedRequest, project_id: str, branch_id: str, role_name: str
) -> dict[str, Any]:
    """Returns the role's password, if the project stores passwords (`store_passwords`)."""
    password = catalog.reveal_password(request.auth, project_id, branch_id, role_name)
    return {"password": password}


@roles.post(ROLE + "/reveal_password", response=Password)
def reveal_project_branch_role_password(
    request: AuthenticatedRequest, project_id: str, branch_id: str, role_name: str
) -> dict[str, Any]:
    """The same as `GET`, for a widely used client that sends `POST`."""
    return get_project_branch_role_password(request, project_id, branch_id, role_name)


@roles.post(ROLE + "/reset_password", response=RoleAndOperations)
def reset_project_branch_role_password(
    request: AuthenticatedRequest, project_id: str, branch_id: str, role_name: str
) -> dict[str, Any]:
    """Gives the role a new password, which the response contains. The old password is no longer
    accepted, and the role's open sessions end."""
    return _with_password(*catalog.reset_password(request.auth, project_id, branch_id, role_name))


def _with_password(role: Role, password: str, operations: list[Operation]) -> dict[str, Any]:
    role.password = password
    return {"role": role, "operations": operations}


databases = Router(tags=["databases"])

DATABASES = "/projects/{project_id}/branches/{branch_id}/databases"
DATABASE = DATABASES + "/{database_name}"


@databases.get(DATABASES, response=Databases)
def list_project_branch_databases(
    request: AuthenticatedRequest, project_id: str, branch_id: str
) -> dict[str, Any]:
    """Lists the branch's databases."""
    return {"databases": catalog.list_databases(request.auth, project_id, branch_id)}


@databases.post(DATABASES, response={201: DatabaseAndOperations})
def create_project_branch_database(
    request: AuthenticatedRequest, project_id: str, branch_id: str, body: CreateDatabase
) -> tuple[int, dict[str, Any]]:
    """Creates a database, which the role `owner_name` owns. It exists in Postgres once the
    operations have finished."""
    wanted = body.database
    return 201, _changed(
        *catalog.create_database(
            request.auth, project_id, branch_id, name=wanted.name, owner_name=wanted.owner_name
        )
    )


@databases.get(DATABASE, response=OneDatabase)
def get_project_branch_database(
    request: AuthenticatedRequest, project_id: str, branch_id: str, database_name: str
) -> dict[str, Any]:
    """Returns the database with this name."""
    found = catalog.get_database(request.auth, project_id, branch_id, database_name)
    return {"database": found}


@databases.patch(DATABASE, response=DatabaseAndOperations)
def update_project_branch_database(
    request: AuthenticatedRequest,
    project_id: str,
    branch_id: str,
    database_name: str,
    body: UpdateDatabase,
) -> dict[str, Any]:
    """Changes the database's name, its owner, or both."""
    changes = body.database
    return _changed(
        *catalog.update_database(
            request.auth,
            project_id,
            branch_id,
            database_name,
            new_name=changes.name,
            owner_name=changes.owner_name,
        )
    )


@databases.delete(DATABASE, response=DatabaseAndOperations)
def delete_project_branch_database(
    request: AuthenticatedRequest, project_id: str, branch_id: str, database_name: str
) -> dict[str, Any]:
    """Deletes the database permanently, with all its data. Connections to it are closed."""
    return _changed(*catalog.delete_database(request.auth, project_id, branch_id, database_name))


def _changed(database: Database, operations: list[Operation]) -> dict[str, Any]:
    return {"database": database, "operations": operations}
