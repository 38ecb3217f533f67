"""`/projects/{project_id}/branches/{branch_id}/databases`. A database's name is its key."""

from typing import Any

from controlplane.api.auth import AuthenticatedRequest
from controlplane.api.requests.catalog import CreateDatabase, UpdateDatabase
from controlplane.api.responses.catalog import DatabaseAndOperations, Databases, OneDatabase
from controlplane.api.routing import Router
from controlplane.models import Database, Operation
from controlplane.services import catalog

router = Router(tags=["databases"])

DATABASES = "/projects/{project_id}/branches/{branch_id}/databases"
DATABASE = DATABASES + "/{database_name}"


@router.get(DATABASES, response=Databases, exclude_none=True)
def list_project_branch_databases(
    request: AuthenticatedRequest, project_id: str, branch_id: str
) -> dict[str, Any]:
    """The branch's databases."""
    return {"databases": catalog.list_databases(request.auth, project_id, branch_id)}


@router.post(DATABASES, response={201: DatabaseAndOperations}, exclude_none=True)
def create_project_branch_database(
    request: AuthenticatedRequest, project_id: str, branch_id: str, body: CreateDatabase
) -> tuple[int, dict[str, Any]]:
    """A database that the role owns; it is there once the operations have finished."""
    wanted = body.database
    return 201, _changed(
        *catalog.create_database(
            request.auth, project_id, branch_id, name=wanted.name, owner_name=wanted.owner_name
        )
    )


@router.get(DATABASE, response=OneDatabase, exclude_none=True)
def get_project_branch_database(
    request: AuthenticatedRequest, project_id: str, branch_id: str, database_name: str
) -> dict[str, Any]:
    """One database, by its name."""
    found = catalog.get_database(request.auth, project_id, branch_id, database_name)
    return {"database": found}


@router.patch(DATABASE, response=DatabaseAndOperations, exclude_none=True)
def update_project_branch_database(
    request: AuthenticatedRequest,
    project_id: str,
    branch_id: str,
    database_name: str,
    body: UpdateDatabase,
) -> dict[str, Any]:
    """Another name, another owner, or both."""
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


@router.delete(DATABASE, response=DatabaseAndOperations, exclude_none=True)
def delete_project_branch_database(
    request: AuthenticatedRequest, project_id: str, branch_id: str, database_name: str
) -> dict[str, Any]:
    """For good, with all that is in it; its connections are dropped."""
    return _changed(*catalog.delete_database(request.auth, project_id, branch_id, database_name))


def _changed(database: Database, operations: list[Operation]) -> dict[str, Any]:
    return {"database": database, "operations": operations}
