"""Each call of Neon's API acts, or is refused by name with the reason and the alternative, and no
query parameter is without effect. Unknown paths and parameters are named."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from django.test import Client as DjangoClient

from controlplane.api.document.failures import EXAMPLE_REQUEST_ID
from controlplane.api.http.not_offered import why_not_offered
from controlplane.api.router import api as described
from controlplane.models import Account, Host
from tests.controlplane.routes import BODIES, NOW, query_of
from tests.controlplane.rows import make_project
from tests.support.neon_document import Operation, read_operations

# Calls that earlier documents of Neon had, and clients know.
OLDER = (
    ("GET", "/billing"),
    ("GET", "/branches"),
    ("POST", "/organizations"),
    ("DELETE", "/organizations/{org_id}"),
    ("GET", "/organizations/{org_id}/billing"),
    ("DELETE", "/organizations/{org_id}/invitations/{invitation_id}"),
    ("POST", "/projects/{project_id}/branches/{branch_id}/anonymized"),
    ("POST", "/projects/{project_id}/branches/{branch_id}/recover"),
    ("POST", "/projects/{project_id}/branches/{branch_id}/reset"),
    ("POST", "/projects/{project_id}/endpoints/{endpoint_id}/passwordless_auth"),
    ("POST", "/projects/{project_id}/query"),
    ("POST", "/projects/{project_id}/transfer"),
    ("PATCH", "/users/me"),
)


# A parameter of a path.
OF_PATH = re.compile(r"\{\w+\}")


def plain(template: str) -> str:
    """Replace the names of parameters: one document says project_id where another says id."""
    return OF_PATH.sub("{}", template)


@pytest.fixture(scope="module")
def built() -> Mapping[tuple[str, str], Any]:
    """The calls of this server, with their descriptions."""
    paths = described.get_openapi_schema()["paths"]
    return {
        (method.upper(), plain(path)): call
        for path, methods in paths.items()
        for method, call in methods.items()
    }


def some(path: str) -> str:
    return OF_PATH.sub("some-thing-12345678", path)


def test_every_call_of_neons_document_acts_or_is_refused_with_the_alternative(
    api: DjangoClient, built: Mapping[tuple[str, str], Any]
) -> None:
    known = read_operations()
    assert len(known) == 179
    paths = {path for _, path in built}
    known += [Operation(method, path, "", ()) for method, path in OLDER]
    unbuilt = [call for call in known if (call.method, plain(call.path)) not in built]
    assert 100 < len(unbuilt) < 130
    for call in unbuilt:
        path = some(call.path)
        response = api.generic(call.method, f"/api/v2{path}")
        said = response.json()
        # Another method of an existing path is answered by 405.
        assert response.status_code == (405 if plain(call.path) in paths else 404), call
        assert said["code"] == "NOT_OFFERED", call
        named = f"not offered by this server: {call.method} {path} is not available here: "
        assert said["message"].startswith(named), call
        reason, _, alternative = said["message"].removeprefix(named).partition("; ")
        assert reason, call
        assert alternative or "resets a branch" in reason, call


def test_the_alternatives_that_are_named_exist(built: Mapping[tuple[str, str], Any]) -> None:
    messages = {why_not_offered(call.method, some(call.path)) or "" for call in read_operations()}
    named = {
        (method, plain(path))
        for message in messages
        for method, path in re.findall(r"(GET|POST) (/[\w/{}]+)", message)
    }
    assert len(named) > 6
    assert named - {("POST", "/sql")} <= built.keys()


def test_no_query_parameter_of_neons_document_is_silent(
    api: DjangoClient, built: Mapping[tuple[str, str], Any]
) -> None:
    """Each is in this server's document, which `test_every_field` compares with what the parameters
    do, or the request is refused."""
    seen = 0
    for call in read_operations():
        if (call.method, plain(call.path)) not in built:
            continue
        parameters = built[call.method, plain(call.path)].get("parameters", ())
        ours = {one["name"] for one in parameters if one["in"] == "query"}
        for name in call.parameters:
            seen += 1
            if name not in ours:
                response = api.generic(call.method, f"/api/v2{some(call.path)}?{name}=1")
                said = response.json()
                assert response.status_code == 400, f"{call}: {name}"
                assert [one["field"] for one in said["errors"]] == [name], call
    assert seen > 40


def test_an_unknown_query_parameter_of_any_call_is_refused(api: DjangoClient) -> None:
    document = described.get_openapi_schema()
    for path, methods in document["paths"].items():
        for method in methods:
            route = (method.upper(), path)
            query = (query_of(*route) or "?").format(now=NOW, branch_id="b")
            body = json.dumps(BODIES[route]) if route in BODIES else ""
            with_uuids = re.sub(r"\{(webhook|delivery)_id\}", EXAMPLE_REQUEST_ID, path)
            address = f"/api/v2{OF_PATH.sub('1', with_uuids)}{query}&colour=red"
            response = api.generic(route[0], address, body, content_type="application/json")
            assert response.status_code == 400, f"{route}: {response.content.decode()}"
            assert "colour" in response.json()["message"], route


@pytest.fixture
def project_path(account: Account, host: Host) -> str:
    return f"/api/v2/projects/{make_project(account, host).id}"


def test_a_refused_parameter_says_which_there_are(api: DjangoClient, project_path: str) -> None:
    response = api.get(f"{project_path}/operations/1?waits=7")
    words = "this call has no such parameter: it has wait"
    assert response.json()["errors"] == [{"field": "waits", "code": "INVALID", "message": words}]
    response = api.get(f"{project_path}?a=1&b=2")
    assert [one["field"] for one in response.json()["errors"]] == ["a", "b"]
    # Another request is answered as before.
    assert api.get(project_path).status_code == 200


@pytest.mark.parametrize(
    ("method", "query", "accepted"),
    [
        ("GET", "include_deleted", "false"),
        ("GET", "include_deleted", "False"),
        ("DELETE", "hard_delete", "true"),
    ],
)
def test_deleted_branches_cannot_be_recovered(
    api: DjangoClient, project_path: str, method: str, query: str, accepted: str
) -> None:
    path = f"{project_path}/branches"
    if method == "DELETE":
        path += f"/{api.get(path).json()['branches'][0]['id']}"
    other = "true" if accepted.lower() == "false" else "false"
    response = api.generic(method, f"{path}?{query}={other}")
    said = response.json()
    assert (response.status_code, said["code"]) == (422, "NOT_OFFERED")
    assert "take a snapshot before you delete one" in said["message"]
    response = api.generic(method, f"{path}?{query}={accepted}")
    # The default branch cannot be deleted.
    assert response.status_code == (200 if method == "GET" else 422)
    assert "not offered" not in response.content.decode()
    assert api.generic(method, f"{path}?{query}=perhaps").status_code in (400, 422)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("{project}/permissions", "project_permissions"),
        ("{project}/available_preload_libraries", "libraries"),
        ("{project}/jwks", "jwks"),
        ("{project}/vpc_endpoints", "endpoints"),
        ("{branch}/functions", "functions"),
        ("{branch}/functions?limit=5&cursor=x", "functions"),
        ("{branch}/triggers", "triggers"),
        ("{branch}/custom-domains?limit=5", "custom_domains"),
        ("{branch}/buckets", "buckets"),
        ("/api/v2/organizations/{org}/invitations", "invitations"),
        ("/api/v2/organizations/{org}/vpc/vpc_endpoints", "endpoints"),
        ("/api/v2/organizations/{org}/vpc/region/local/vpc_endpoints", "endpoints"),
        ("/api/v2/projects/shared?limit=5&search=x&cursor=y&timeout=1000", "projects"),
    ],
)
def test_lists_of_what_this_server_never_has_are_empty(
    api: DjangoClient, account: Account, project_path: str, path: str, field: str
) -> None:
    branch_id = api.get(f"{project_path}/branches").json()["branches"][0]["id"]
    places = {
        "project": project_path,
        "branch": f"{project_path}/branches/{branch_id}",
        "org": account.organization_id,
    }
    response = api.get(path.format(**places))
    assert (response.status_code, response.json()[field]) == (200, [])
    if "{" in path:
        places = {"project": f"{project_path}9", "branch": f"{project_path}/branches/b", "org": "o"}
        assert api.get(path.format(**places)).status_code == 404
    for wrong in ("limit=0", "limit=x"):
        assert api.get(f"{path.format(**places).partition('?')[0]}?{wrong}").status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "message"),
    [
        ("GET", "/nothing", "not found: there is no GET /nothing in this API"),
        ("POST", "/projects/a/b/c/d", "not found: there is no POST /projects/a/b/c/d in this API"),
        ("GET", "", "not found: there is no GET / in this API"),
        ("GET", "/vpc_endpoints", "not found: there is no GET /vpc_endpoints in this API"),
    ],
)
def test_an_unknown_path_is_named(api: DjangoClient, method: str, path: str, message: str) -> None:
    response = api.generic(method, f"/api/v2{path}")
    said = response.json()
    assert (response.status_code, said["code"], said["message"]) == (404, "", message)


def test_a_long_path_is_shortened(api: DjangoClient) -> None:
    for path in ("x" * 3000, f"projects/{'x' * 3000}/advisors"):
        assert len(api.get(f"/api/v2/{path}").json()["message"]) < 450


def test_paths_outside_the_api(api: DjangoClient) -> None:
    assert api.get("/nothing").json()["message"] == "not found: /nothing"


def test_a_call_of_this_server_is_not_refused_for_a_resource_that_is_called_like_another(
    api: DjangoClient,
) -> None:
    assert why_not_offered("GET", "/projects/shared") is None
    assert why_not_offered("GET", "/projects/auth/operations") is None
    assert api.get("/api/v2/projects/auth").json()["message"] == "project not found"
