"""The API ignores no field of a request: each field in the API's document has an effect, is
refused, or is documented as stored only. `field_declarations` says which."""

import functools
import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from django.test import Client as DjangoClient

from controlplane.api.router import api as described
from controlplane.models import Account, Branch, Database, Endpoint, Host, Role
from tests.controlplane.field_declarations import (
    DECLARED,
    CheckedBy,
    Declaration,
    Refused,
    Returned,
    StoredOnly,
)
from tests.controlplane.request_fields import request_fields, schema_of
from tests.controlplane.routes import BODIES
from tests.controlplane.rows import make_project, make_webhook
from tests.support.stack import ROOT

FLAT: dict[str, Declaration] = {
    f"{route} {name}": one for route, fields in DECLARED.items() for name, one in fields.items()
}
NAMED_TESTS = sorted({one.test for one in FLAT.values() if isinstance(one, CheckedBy)})
PROBED = [name for name, one in FLAT.items() if isinstance(one, Returned | Refused)]


@functools.cache
def document() -> Any:
    return json.loads(json.dumps(described.get_openapi_schema()))


def test_every_field_of_the_document_is_declared_and_no_other() -> None:
    found = set(request_fields(document()))
    assert found - FLAT.keys() == set(), "these fields have no declaration"
    assert FLAT.keys() - found == set(), "the document has no such fields"


@functools.cache
def known_tests() -> set[str]:
    """Return the tests of all suites, each as "test_file.py::test_name"."""
    return {
        f"{path.name}::{name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }


@pytest.mark.parametrize("test", NAMED_TESTS)
def test_each_named_test_exists(test: str) -> None:
    """A declaration may name a test by the beginning of its name."""
    assert any(known.startswith(test) for known in known_tests())


@pytest.fixture
def ids(account: Account, host: Host) -> dict[str, str]:
    """Return ids of a project, on a host with a pooler. Its branch `bare` has no endpoint."""
    host.pooling_available, host.pooler_version = True, "1.25"
    host.save()
    project = make_project(account, host)
    branch = Branch.objects.get(project=project)
    bare = Branch.objects.create(project=project, name="bare", current_state="ready")
    for one in (branch, bare):
        Role.objects.create(branch=one, name="neondb_owner", verifier="-")
        Database.objects.create(branch=one, name="neondb", owner_name="neondb_owner")
    return {
        "project": project.id,
        "branch": branch.id,
        "bare": bare.id,
        "endpoint": Endpoint.objects.get(project=project).id,
        "organization": account.organization_id,
        "org": account.organization_id,
        "webhook": str(make_webhook(account).id),
    }


@pytest.mark.parametrize("name", PROBED)
def test_a_field_is_returned_or_refused_as_declared(
    api: DjangoClient, ids: dict[str, str], name: str
) -> None:
    route, field = name.rsplit(" ", 1)
    declaration = FLAT[name]
    assert isinstance(declaration, Returned | Refused)
    value = declaration.value(ids) if callable(declaration.value) else declaration.value
    response = send(api, route, ids, field, value)
    if isinstance(declaration, Refused):
        _assert_refused(response, field, declaration)
        return
    assert response.status_code in (200, 201), response.content
    found = at(response.json(), declaration.at or field)
    assert found == value
    if isinstance(declaration, StoredOnly):
        said = schema_of(document(), route, field).get("description", "")
        assert "Stored" in said, "the document does not say that the field is only stored"


def _assert_refused(response: Any, field: str, declaration: Refused) -> None:
    assert 400 <= response.status_code < 500, response.content
    message = response.json()["message"]
    assert declaration.words in message
    assert field.rsplit(".", 1)[-1] in message


def send(api: DjangoClient, route: str, ids: Mapping[str, str], field: str, value: Any) -> Any:
    """Send the route's otherwise valid request with `field` set to `value`; return the response."""
    method, template = route.split(" ")
    path = template
    for part in ("project", "branch", "endpoint", "webhook", "org"):
        path = path.replace(f"{{{part}_id}}", ids[part])
    path = path.replace("{database_name}", "neondb")
    text = json.dumps(BODIES[method, template]).replace("br-no-where-123456", ids["bare"])
    body = json.loads(text)
    put(body, field, value)
    return api.generic(method, f"/api/v2{path}", json.dumps(body), content_type="application/json")


def put(body: Any, field: str, value: Any) -> None:
    *parts, last = re.findall(r"\w+|\[\]", field)
    for part, following in zip(parts, [*parts, last][1:], strict=True):
        empty: Any = [{}] if following == "[]" else {}
        body = body[0] if part == "[]" else body.setdefault(part, empty)
    body[last] = value


def at(answer: Any, place: str) -> Any:
    for part in re.findall(r"\w+|\[\]", place):
        answer = answer[0] if part == "[]" else answer[part]
    return answer
