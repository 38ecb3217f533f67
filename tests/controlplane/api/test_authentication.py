"""Bearer keys (specification, section 5): without a valid key, a caller learns nothing.
`/api_keys`, `/users/me`, `/regions` and `/auth`."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from tests.controlplane.fields import timestamp
from tests.controlplane.routes import Route, all_routes
from tests.support.client import Client
from tests.support.project import Project, refusal
from tests.support.stack import Stack
from tests.support.webhooks import Webhook

UNAUTHENTICATED = (401, "supplied credentials do not pass authentication")
NOWHERE = {
    "project_id": "no-where-12345678",
    "branch_id": "br-no-where-123456",
    "endpoint_id": "ep-no-where-123456",
    "operation_id": "00000000-0000-0000-0000-000000000000",
    "chain_id": "00000000-0000-0000-0000-000000000000",
    "role_name": "nobody",
    "database_name": "nothing",
    "key_id": "0",
    "snapshot_id": "snap-no-where-123456",
    "webhook_id": "wh-no-where-123456",
    "delivery_id": "dlv-0",
    "org_id": "org-nowhere-00000000",
    "member_id": "00000000-0000-0000-0000-000000000000",
    "region_id": "nowhere",
    "account_id": "0",
    "host_id": "nowhere",
}


@pytest.fixture
def revoked(alice: Client) -> str:
    made = alice.post("/api_keys", {"key_name": "brief"})
    alice.delete(f"/api_keys/{made['id']}")
    return str(made["key"])


def test_no_route_answers_without_a_valid_key(stack: Stack, revoked: str) -> None:
    headers: list[dict[str, str]] = [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Bearer {revoked}"},
        {"Authorization": f"Basic {revoked}"},
        {"Authorization": "Bearer \xe9\xff"},
        {"Authorization": "Bearer " + "x" * 5000},
    ]
    routes = all_routes(stack.api_url)
    assert len(routes) > 30

    def check(asked: tuple[Route, dict[str, str]]) -> None:
        route, header = asked
        url = stack.api_url + route.path(**NOWHERE)
        response = requests.request(route.method, url, headers=header, json=route.body, timeout=30)
        assert refusal(response) == UNAUTHENTICATED, (route, header)
        assert response.json()["code"] == ""

    # The API delays each refusal of a key.
    with ThreadPoolExecutor(4) as threads:
        for _ in threads.map(check, itertools.product(routes, headers)):
            pass


def test_the_scheme_is_case_insensitive(alice: Client) -> None:
    header = {"Authorization": f"bearer {alice.key}"}
    assert requests.get(f"{alice.api_url}/projects", headers=header, timeout=10).ok


def test_the_key_is_checked_before_the_body_is_read(stack: Stack) -> None:
    response = requests.post(f"{stack.api_url}/projects", data=b"{nonsense", timeout=10)
    assert refusal(response) == UNAUTHENTICATED


@pytest.mark.thorough
def test_another_accounts_resources_are_not_found(
    stack: Stack, project: Project, bob: Client
) -> None:
    """On every route, with the same message as for a resource that does not exist."""
    operation = project.operations()[0]
    key_id = str(project.client.post("/api_keys", {"key_name": "alices"})["id"])
    webhook = Webhook(stack, project.client, "https://hooks.example/", event_types=["*"])
    taken = project.client.post(project.branch_path(rest="/snapshot"))
    snapshot = project.done(taken)["snapshot"]
    org_id = project.client.get("/users/me/organizations")["organizations"][0]["id"]
    (only,) = project.client.get(f"/organizations/{org_id}/members")["members"]
    hers = {
        "project_id": project.id,
        "branch_id": project.branch_id,
        "endpoint_id": project.endpoint_id,
        "operation_id": operation["id"],
        "chain_id": operation["chain_id"],
        "role_name": "neondb_owner",
        "database_name": "neondb",
        "key_id": key_id,
        "account_id": project.client.get("/users/me")["id"],
        "snapshot_id": snapshot["id"],
        "webhook_id": webhook.id,
        "delivery_id": webhook.test()["id"],
        "org_id": org_id,
        "member_id": only["member"]["id"],
        "region_id": "local",
        "host_id": "local",
    }
    before = everything(project)
    tried = 0
    for route in all_routes(stack.api_url):
        if "{" in route.template:
            answer = refusal(route.call(bob, **hers))
            assert answer[0] == (403 if route.is_for_operators else 404), route
            assert answer == refusal(route.call(bob, **NOWHERE)), route
            tried += 1
    assert tried > 25
    assert everything(project) == before
    webhook.delete()
    # The owner's own calls succeed: the 404s came from the account.
    assert project.client.get(f"{project.path}/operations/{operation['id']}")


def everything(project: Project) -> list[object]:
    paths = (
        "",
        "/branches",
        "/endpoints",
        "/operations",
        "/snapshots",
        f"/branches/{project.branch_id}/roles",
    )
    found = [without_measures(project.client.get(project.path + path)) for path in paths]
    return [*found, [key["name"] for key in project.client.get("/api_keys")]]


def without_measures(answer: Any) -> Any:
    """Leave out what changes while an endpoint runs."""
    if isinstance(answer, list):
        return [without_measures(one) for one in answer]
    if not isinstance(answer, dict):
        return answer
    measures = ("active_time", "compute_", "cpu_", "data_", "written_", "last_active", "logical")
    return {
        name: without_measures(value)
        for name, value in answer.items()
        if not name.startswith((*measures, "synthetic", "full_size"))
    }


@pytest.mark.thorough
def test_keys_are_created_and_listed(alice: Client) -> None:
    response = alice.call("POST", "/api_keys", json={"key_name": " ci "})
    assert response.status_code == 200
    made = response.json()
    assert set(made) == {*("id", "key", "name", "created_at", "created_by"), "read_only"}
    assert (made["name"], timestamp(made["created_at"])) == ("ci", True)

    with_it = Client(alice.api_url, made["key"])
    listed = with_it.get("/api_keys")
    assert [key["name"] for key in listed] == ["ci", "tests"]
    for key in listed:
        assert set(key) == {
            *("id", "name", "created_at", "created_by"),
            *("last_used_at", "last_used_from_addr"),
            "read_only",
        }
        assert timestamp(key["last_used_at"])
        assert key["last_used_from_addr"] == "127.0.0.1"
        assert key["created_by"]["id"] == made["created_by"]


def test_a_key_is_never_shown_again(alice: Client) -> None:
    key = alice.post("/api_keys", {"key_name": "once"})["key"]
    assert key not in alice.call("GET", "/api_keys").text


def test_a_revoked_key_is_not_listed_and_not_accepted(alice: Client) -> None:
    made = alice.post("/api_keys", {"key_name": "brief"})
    with_it = Client(alice.api_url, made["key"])
    with_it.get("/projects")

    body = alice.delete(f"/api_keys/{made['id']}")

    assert (body["id"], body["revoked"]) == (made["id"], True)
    assert timestamp(body["last_used_at"])
    assert made["id"] not in [key["id"] for key in alice.get("/api_keys")]
    assert with_it.call("GET", "/projects").status_code == 401
    assert alice.delete(f"/api_keys/{made['id']}")["revoked"] is True


def test_another_accounts_key_is_not_found(alice: Client, bob: Client) -> None:
    made = bob.post("/api_keys", {"key_name": "bobs"})
    response = alice.call("DELETE", f"/api_keys/{made['id']}")
    assert refusal(response) == (404, "API key not found")
    Client(bob.api_url, made["key"]).get("/projects")


@pytest.mark.parametrize("body", [{}, {"key_name": ""}, {"key_name": "x" * 65}, {"key_name": 1}])
def test_refused_names_of_keys(alice: Client, body: Any) -> None:
    assert refusal(alice.call("POST", "/api_keys", json=body))[0] == 400
    assert len(alice.get("/api_keys")) == 1


def test_the_current_user(alice: Client, free: Client) -> None:
    me = alice.get("/users/me")
    assert me["login"] == me["name"]
    assert me["plan"] == "unlimited"
    assert (free.get("/users/me")["plan"], free.get("/users/me")["max_autoscaling_limit"]) == (
        "free",
        1,
    )
    assert alice.get("/auth")["account_id"] == me["id"]


def test_a_keys_limits_are_returned(alice: Client, project: Project) -> None:
    own = alice.get("/api_keys")[0]["id"]
    assert alice.get("/auth") == {
        "api_key_id": own,
        "account_id": alice.get("/users/me")["id"],
        "auth_method": "api_key_user",
        "auth_data": alice.get("/users/me")["login"],
        "operator": False,
        "read_only": False,
    }
    limits = {"project_id": project.id, "read_only": True, "expires_at": "2100-01-31T00:00:00Z"}
    made = project.client.post("/api_keys", {"key_name": "ci", **limits})
    told = Client(alice.api_url, made["key"]).get("/auth")
    assert {name: told[name] for name in limits} == limits


def test_the_operators_account_is_marked(stack: Stack) -> None:
    key = (stack.state_dir / "api-key").read_text().strip()
    assert Client(stack.api_url, key).get("/auth")["operator"] is True
