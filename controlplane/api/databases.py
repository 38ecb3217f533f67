"""`/projects/{project_id}/branches/{branch_id}/databases`. A database is identified by its name."""

from typing import Any

from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.routing import Router
from controlplane.api.requests.catalog import CreateDatabase, UpdateDatabase
from controlplane.api.responses.catalog import DatabaseAndOperations, Databases, OneDatabase
from controlplane.models import Database, Operation
from controlplane.services import catalog

router = Router(tags=["databases"])

DATABASES = "/projects/{project_id}/branches/{branch_id}/databases"
DATABASE = DATABASES + "/{database_name}"


@router.get(DATABASES, response=Databases, exclude_none=True)
def list_project_branch_databases(
    request: AuthenticatedRequest, project_id: str, branch_id: str
) -> dict[str, Any]:
    """Lists the branch's databases."""
    return {"databases": catalog.list_databases(request.auth, project_id, branch_id)}


@router.post(DATABASES, response={201: DatabaseAndOperations}, exclude_none=True)
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


@router.get(DATABASE, response=OneDatabase, exclude_none=True)
def get_project_branch_database(
    request: AuthenticatedRequest, project_id: str, branch_id: str, database_name: str
) -> dict[str, Any]:
    """Returns the database with this name."""
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


@router.delete(DATABASE, response=DatabaseAndOperations, exclude_none=True)
def delete_project_branch_database(
    request: AuthenticatedRequest, project_id: str, branch_id: str, database_name: str
) -> dict[str, Any]:
    """Deletes the database permanently, with all its data. Connections to it are closed."""
    return _changed(*catalog.delete_database(request.auth, project_id, branch_id, database_name))


def _changed(database: Database, operations: list[Operation]) -> dict[str, Any]:
    return {"database": database, "operations": operations}
