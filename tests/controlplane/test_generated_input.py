"""Generated JSON at every route with a body: refused or accepted, never a crash."""

import json
from typing import Any

import pytest
from django.test import Client as DjangoClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from controlplane.models import Account, Branch, Endpoint, Host
from tests.controlplane.routes import BODIES
from tests.controlplane.rows import make_project, make_snapshot, make_webhook
from tests.support.stack import ROOT

pytestmark = pytest.mark.slow

# Inputs that have failed, so that the next run begins with them.
EXAMPLES = ROOT / ".hypothesis" / "routes"
STRANGE = st.sampled_from(
    ["", " ", "\x00", "\ud800", "é" * 40, "x" * 300, "read_write", "main", "-1", "NaN", "br-a-b-1"]
)
NUMBERS = st.one_of(
    st.integers(),
    st.sampled_from([0.25, 1, 2, 56, 10**400, -(10**30), 2**31, 2**63]),
    st.floats(),
)
VALUES = st.recursive(
    st.one_of(STRANGE, NUMBERS, st.none(), st.booleans(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(STRANGE, st.just("pg_settings")), inner, max_size=3),
    ),
    max_leaves=12,
)


@pytest.mark.thorough
@pytest.mark.parametrize(("method", "template"), BODIES)
def test_no_input_causes_a_server_error(
    api: DjangoClient,
    account: Account,
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    template: str,
) -> None:
    monkeypatch.setattr("django.conf.settings.OPERATORS", {account.name})
    project = make_project(account, host)
    path = template.format(
        account_id=account.id,
        project_id=project.id,
        branch_id=Branch.objects.get(project=project, hidden=False).id,
        endpoint_id=Endpoint.objects.get(project=project).id,
        database_name="neondb",
        snapshot_id=make_snapshot(project).id,
        webhook_id=make_webhook(account).id,
        org_id=account.organization_id,
        host_id=host.id,
    )

    document = api.get("/api/v2/openapi.json").json()
    body = BODIES[method, template]
    (wrapper,) = body
    names = fields_of(document, method, template, wrapper)

    @settings(
        max_examples=100,
        deadline=None,
        # A database for each route: otherwise the success of one route would delete another's
        # failures.
        database=DirectoryBasedExampleDatabase(EXAMPLES / f"{method} {template.replace('/', ' ')}"),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    # A valid body with some fields replaced, or any JSON.
    @given(st.dictionaries(st.sampled_from(names), VALUES, max_size=3), st.none() | VALUES)
    def throw(changes: dict[str, Any], nonsense: Any) -> None:
        sensible = {wrapper: {**body[wrapper], **changes}} if names != [wrapper] else changes
        text = json.dumps(sensible if nonsense is None else nonsense)
        response = api.generic(method, f"/api/v2{path}", text, content_type="application/json")
        assert response.status_code < 500, response.content
        assert response.headers["Content-Type"].startswith("application/json")
        if response.status_code >= 400:
            assert set(response.json()) == {"request_id", "code", "message", "errors"}

    throw()


def fields_of(document: Any, method: str, template: str, wrapper: str) -> list[str]:
    """Return the names of the fields in the route's wrapper; without a wrapper, of the body
    itself."""
    schemas = document["components"]["schemas"]
    content = document["paths"][template][method.lower()]["requestBody"]["content"]
    reference = content["application/json"]["schema"]
    for name in ("", wrapper):
        if name:
            reference = schemas[reference["$ref"].rpartition("/")[2]]["properties"][name]
        options = reference.get("anyOf", [reference])
        reference = next((option for option in options if "$ref" in option), reference)
    if "$ref" not in reference:
        return [wrapper]
    return list(schemas[reference["$ref"].rpartition("/")[2]]["properties"])
