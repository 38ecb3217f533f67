"""`controlplane.api.http.routing` renders rows as their schemas would, and only services
query."""

import ast
import json
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.test import Client as DjangoClient
from django.utils import timezone
from ninja import Schema

from controlplane import api
from controlplane.api.http.routing import as_json, renderer
from controlplane.api.responses.branches import BranchOut, DatabaseOut, RoleOut
from controlplane.api.responses.endpoints import EndpointOut
from controlplane.api.responses.operations import OperationOut, OperationWithStepsOut
from controlplane.api.responses.projects import ProjectListItemOut, ProjectOut
from controlplane.models import (
    Account,
    Branch,
    Database,
    Endpoint,
    EndpointState,
    Host,
    Operation,
    Project,
    Role,
)
from controlplane.services import branches, endpoints, operations, projects
from tests.controlplane.api.test_document import validator
from tests.controlplane.rows import make_project

NOW = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)


def by_schema(schema: type[Schema], row: Any) -> Any:
    """Render as pydantic does: a field with a default is left out if it is None."""
    whole = schema.model_validate(row)
    printed = json.loads(whole.model_dump_json(exclude_none=True))
    required = [name for name, one in schema.model_fields.items() if one.is_required()]
    return {**dict.fromkeys(required), **printed}


def by_renderer(schema: type[Schema], row: Any) -> Any:
    render = renderer(schema)
    assert render is not None
    return json.loads(as_json(render(row)))


@pytest.fixture
def project(account: Account, host: Host) -> Project:
    return make_project(account, host, size=2)


@pytest.fixture
def rows(account: Account, project: Project) -> list[tuple[type[Schema], Any]]:
    """Rows from Django's ORM, with all optional fields present, and with all of them absent."""
    branch = Branch.objects.filter(project=project, default=True).get()
    child = Branch(
        project=project, parent=branch, name="child", logical_size=7, created_at=NOW, id="br-c-1"
    )
    endpoint = Endpoint.objects.filter(project=project)[0]
    used = Endpoint(
        project=project,
        branch=branch,
        name="named",
        last_active=NOW,
        started_at=NOW,
        suspended_at=NOW,
        settings={"pg_settings": {"work_mem": "8MB"}},
    )
    used.pending_state = EndpointState.ACTIVE
    operation = Operation.objects.filter(project=project)[0]
    failed = Operation(
        project=project,
        branch=branch,
        endpoint=endpoint,
        action="start_compute",
        status="failed",
        error="no room",
        chain=uuid.uuid4(),
        retry_at=NOW,
        dispatched_at=NOW,
        updated_at=NOW,
        initiator_type="client",
        initiator_name="neondb_owner",
        initiator_address="192.0.2.10",
    )
    role = Role(branch=branch, name="ann", verifier="-")
    role.password = "shown once"
    database = Database(id=3, branch=branch, name="neondb", owner_name="ann")
    return [
        (ProjectListItemOut, project),
        (ProjectOut, project),
        (BranchOut, branch),
        (BranchOut, child),
        (EndpointOut, endpoint),
        (EndpointOut, used),
        (OperationOut, operation),
        (OperationOut, failed),
        (OperationWithStepsOut, operation),
        (RoleOut, role),
        (RoleOut, Role(branch=branch, name="bob", verifier="-")),
        (DatabaseOut, database),
    ]


def test_rows_are_rendered_as_by_their_schemas(rows: list[tuple[type[Schema], Any]]) -> None:
    for schema, row in rows:
        assert by_renderer(schema, row) == by_schema(schema, row), schema


def test_rows_read_by_plain_statements_are_rendered_like_those_of_the_orm(
    account: Account, project: Project
) -> None:
    endpoint, branch = (
        Endpoint.objects.filter(project=project)[0],
        Branch.objects.filter(project=project)[0],
    )
    operation = Operation.objects.filter(project=project)[0]
    read: list[tuple[type[Schema], Any, Any]] = [
        (ProjectOut, projects.get_project(account, project.id), project),
        (ProjectListItemOut, projects.list_projects(account, after=None, limit=1)[0], project),
        (EndpointOut, endpoints.get_endpoint(account, project.id, endpoint.id), endpoint),
        (BranchOut, branches.get_branch(account, project.id, branch.id), branch),
        (
            OperationWithStepsOut,
            operations.get_operation(account, project.id, str(operation.id)),
            operation,
        ),
    ]
    for schema, fast, plain in read:
        assert by_renderer(schema, fast) == by_schema(schema, plain), schema
        for field in type(plain)._meta.concrete_fields:
            assert getattr(fast, field.attname) == getattr(plain, field.attname), field


def test_listed_endpoints_are_rendered_like_those_of_the_orm(
    account: Account, project: Project
) -> None:
    plain = list(Endpoint.objects.filter(project=project).order_by("created_at", "id"))
    Endpoint.objects.filter(id=plain[0].id).update(
        name="named", last_active=NOW, settings={"pgbouncer_settings": {"a": "1"}}
    )
    plain[0].refresh_from_db()
    listed = endpoints.list_endpoints(account, project.id)
    assert [by_renderer(EndpointOut, one) for one in listed] == [
        by_schema(EndpointOut, one) for one in plain
    ]
    branch_id = plain[1].branch_id
    assert endpoints.list_endpoints(account, project.id, branch_id=branch_id) == listed[1:]


def test_every_answer_to_a_read_matches_the_document(
    api: DjangoClient, account: Account, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No worker reads the logs.
    monkeypatch.setattr("controlplane.api.schemas.once_read", lambda *_, **__: ["[]"])
    document = api.get("/api/v2/openapi.json").json()
    branch = Branch.objects.filter(project=project)[0]
    Role.objects.create(branch=branch, name="ann", verifier="-")
    Database.objects.create(branch=branch, name="stock", owner_name="ann")
    ids = {
        "project_id": project.id,
        "branch_id": branch.id,
        "endpoint_id": Endpoint.objects.filter(branch=branch)[0].id,
        "operation_id": str(Operation.objects.filter(project=project)[0].id),
        "role_name": "ann",
        "database_name": "stock",
    }
    answered = 0
    for path, methods in document["paths"].items():
        try:
            filled = path.format(**ids)
        except KeyError:
            continue
        answer = api.get(f"/api/v2{filled}")
        if "get" not in methods:
            assert answer.status_code == 405, path
            continue
        described = methods["get"]["responses"][str(answer.status_code)]
        schema = described["content"]["application/json"]["schema"]
        complaints = [str(one) for one in validator(document, schema).iter_errors(answer.json())]
        assert not complaints, (path, complaints[0])
        answered += answer.status_code == 200
    assert answered > 15


def test_times_are_in_seconds_and_cursors_in_microseconds() -> None:
    assert as_json({"at": NOW}) == b'{"at":"2026-01-31T12:00:00Z"}'


def test_a_number_of_any_size_is_rendered() -> None:
    assert json.loads(as_json({"settings": {"n": 10**40, "at": timezone.now()}}))["settings"]["n"]


API = Path(api.__path__[0])
MODULES = sorted([*API.glob("*.py"), *API.parent.glob("*/api.py"), *API.parent.glob("*/*_api.py")])
# Calls that begin or extend a query, or write a row.
QUERYING = {"objects", "all", "filter", "exclude", "select_related", "save", "refresh_from_db"}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_a_module_of_the_api_does_not_query(module: Path) -> None:
    found = [
        f"{ast.unparse(node)} (line {node.lineno})"
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in QUERYING
    ]
    assert found == []
