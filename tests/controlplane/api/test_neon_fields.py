"""Every successful answer has the fields that Neon's OpenAPI schemas require, which are marked by
`*` in `tests/fixtures/neon-fields.txt`."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from django.test import Client as DjangoClient

from controlplane.models import Account, Branch, Database, Endpoint, Host, Project, Role
from controlplane.services.passwords import encrypt
from tests.controlplane.rows import make_project
from tests.support.neon_document import Known, read_calls, read_fields

BODIES: Mapping[str, Any] = {
    "POST /api_keys": {"key_name": "deploy"},
    "POST /projects": {"project": {}},
    "PATCH /projects/{project_id}": {"project": {"name": "other"}},
    "POST /projects/{project_id}/branches": {"branch": {"name": "preview"}},
    "PATCH /projects/{project_id}/branches/{branch_id}": {"branch": {"name": "renamed"}},
    "POST /projects/{project_id}/branches/{branch_id}/databases": {
        "database": {"name": "orders", "owner_name": "ann"}
    },
    "PATCH /projects/{project_id}/branches/{branch_id}/databases/{database_name}": {
        "database": {"owner_name": "ann"}
    },
    "POST /projects/{project_id}/branches/{branch_id}/roles": {"role": {"name": "eve"}},
    "POST /projects/{project_id}/endpoints": {
        "endpoint": {"branch_id": "{bare}", "type": "read_write"}
    },
    "PATCH /projects/{project_id}/endpoints/{endpoint_id}": {
        "endpoint": {"passwordless_access": True}
    },
}
TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
}


def complaints(schemas: Mapping[str, Known], name: str, value: Any, at: str) -> Iterator[str]:
    """Yield each required field that the value lacks, and each field of a wrong type."""
    if "&" in name:
        for part in name.split("&"):
            yield from complaints(schemas, part, value, at)
    elif name.endswith("[]"):
        if not isinstance(value, list):
            yield f"{at} is no list"
        else:
            for one in value:
                yield from complaints(schemas, name[:-2], one, f"{at}[]")
    elif name in schemas:
        known = schemas[name]
        if "&" in known.of:
            yield from complaints(schemas, known.of.split()[0], value, at)
        elif known.fields:
            yield from of_fields(schemas, known.fields, value, at)
        elif known.of:
            yield from complaints(schemas, known.of.split()[0], value, at)
    elif name in TYPES and (
        not isinstance(value, TYPES[name]) or (isinstance(value, bool) and name != "boolean")
    ):
        yield f"{at} is no {name}: {value!r}"


def of_fields(
    schemas: Mapping[str, Known], fields: Mapping[str, tuple[bool, str]], value: Any, at: str
) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{at} is no object"
        return
    for name, (is_required, kind) in fields.items():
        if value.get(name) is not None:
            yield from complaints(schemas, kind.split()[0], value[name], f"{at}.{name}")
        elif is_required:
            yield f"{at}.{name} is missing"


@pytest.fixture
def project(account: Account, host: Host) -> Project:
    return make_project(account, host, size=3)


@pytest.mark.slow
def test_every_answer_has_the_fields_that_clients_require(
    api: DjangoClient, account: Account, project: Project
) -> None:
    schemas, found = read_fields(), []
    for call, (status, schema) in sorted(read_calls().items(), key=lambda one: order(one[0])):
        answer = send(api, call, project)
        if answer.status_code != status:
            found.append(f"{call}: {answer.status_code} {answer.content.decode()[:200]}")
        else:
            found += [f"{call}: {one}" for one in complaints(schemas, schema, answer.json(), "")]
    assert not found, "\n".join(found)


def order(call: str) -> int:
    """GET, POST, PATCH, DELETE; of the calls with one method, those with longer paths first."""
    return ["GET", "POST", "PATCH", "DELETE"].index(call.split()[0]) * 10 - call.count("/")


def send(api: DjangoClient, call: str, project: Project) -> Any:
    """Send the call, after creating the resource that it needs."""
    method, path = call.split()
    child = Branch.objects.create(
        project=project, name=f"for {call}", current_state="ready", default=False
    )
    bare = Branch.objects.create(project=project, name=f"bare: {call}", current_state="ready")
    for branch in (child, bare):
        password = encrypt("secret")
        Role.objects.create(branch=branch, name="ann", verifier="-", encrypted_password=password)
        Role.objects.create(branch=branch, name="bob", verifier="-", encrypted_password=password)
        Database.objects.create(branch=branch, name="stock", owner_name="ann")
    endpoint = Endpoint.objects.create(project=project, branch=child, current_state="idle")
    project.operations.filter(status__in=["scheduling", "running"]).update(status="finished")
    filled = path.format(
        project_id=project.id,
        branch_id=child.id,
        endpoint_id=endpoint.id,
        role_name="bob",
        database_name="stock",
        operation_id=project.operations.all()[0].id,
        key_id=api.get("/api/v2/api_keys").json()[0]["id"],
    )
    body = json.dumps(BODIES.get(call, "")).replace("{bare}", bare.id) if call in BODIES else ""
    return api.generic(method, f"/api/v2{filled}", body, content_type="application/json")
