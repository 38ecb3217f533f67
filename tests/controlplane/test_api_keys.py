"""`/api_keys`, `/users/me`, `/regions`, `/auth`."""

from typing import Any

import pytest

from tests.controlplane.fields import timestamp
from tests.support.client import Client
from tests.support.project import Project, refusal
from tests.support.stack import Stack


@pytest.mark.thorough
def test_it_works(alice: Client) -> None:
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
def test_refusals(alice: Client, body: Any) -> None:
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
