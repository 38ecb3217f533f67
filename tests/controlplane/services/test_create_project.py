"""POST /projects."""

from typing import Any

import pytest

from tests.controlplane import fields
from tests.controlplane.fields import NO_PROJECTS, assert_fields
from tests.support.client import Client
from tests.support.project import Project, refusal
from tests.support.stack import Stack


def test_it_works(stack: Stack, alice: Client) -> None:
    response = alice.call("POST", "/projects", json={"project": {}})

    assert response.status_code == 201
    body = response.json()
    assert set(body) == {
        *("project", "connection_uris", "roles", "databases"),
        *("operations", "branch", "endpoints"),
    }
    assert_fields(body["project"], fields.PROJECT, fields.PROJECT_AT_TIMES)
    assert_fields(body["branch"], fields.BRANCH, fields.BRANCH_AT_TIMES)
    (endpoint,), (role,), (database,) = body["endpoints"], body["roles"], body["databases"]
    assert_fields(endpoint, fields.ENDPOINT, fields.ENDPOINT_AT_TIMES)
    assert_fields(role, fields.ROLE, fields.ROLE_AT_TIMES)
    assert_fields(database, fields.DATABASE)
    for operation in body["operations"]:
        assert_fields(operation, fields.OPERATION, fields.OPERATION_AT_TIMES)

    assert body["project"]["name"] == body["project"]["id"]
    branch = body["branch"]
    assert (branch["name"], branch["default"], branch["primary"]) == ("main", True, True)
    assert (branch["current_state"], branch["pending_state"]) == ("init", "ready")
    assert "parent_id" not in branch
    assert (endpoint["current_state"], endpoint["pending_state"]) == ("init", "active")
    assert endpoint["branch_id"] == branch["id"]
    assert (database["name"], database["owner_name"]) == ("neondb", "neondb_owner")
    assert (role["name"], len(role["password"]) >= 16) == ("neondb_owner", True)
    assert [(o["action"], o["status"], "endpoint_id" in o) for o in body["operations"]] == [
        ("create_timeline", "running", False),
        ("start_compute", "scheduling", True),
    ]
    (uri,) = body["connection_uris"]
    assert uri["connection_parameters"] == {
        "database": "neondb",
        "role": "neondb_owner",
        "password": role["password"],
        "host": endpoint["host"],
        "pooler_host": endpoint["host"].replace(endpoint["id"], endpoint["id"] + "-pooler"),
    }
    assert uri["connection_uri"] == (
        f"postgresql://neondb_owner:{role['password']}@localhost"
        f":{stack.proxy_port}/neondb?options=endpoint%3D{endpoint['id']}"
    )

    project = Project(stack, alice, body)
    project.done(body)
    assert project.branch()["current_state"] == "ready"
    assert "pending_state" not in project.branch()
    assert project.endpoint()["current_state"] == "active"


def test_its_database_belongs_to_its_role(project: Project) -> None:
    owner = "SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = 'neondb'"
    assert project.sql(owner) == [("neondb_owner",)]


def test_its_attributes_are_stored(stack: Stack, alice: Client) -> None:
    created = alice.new_project(
        name="Tōkyō <b>orders</b>",
        pg_version=18,
        region_id="local",
        history_retention_seconds=3600,
        store_passwords=False,
        settings={"quota": {"active_time_seconds": 100}},
        default_endpoint_settings={
            "autoscaling_limit_min_cu": 0.5,
            "autoscaling_limit_max_cu": 0.5,
            "suspend_timeout_seconds": -1,
            "pg_settings": {"work_mem": "6MB"},
        },
        branch={"name": "trunk", "role_name": "Ann", "database_name": "orders € 1"},
    )
    project = created["project"]
    assert project["name"] == "Tōkyō <b>orders</b>"
    assert project["history_retention_seconds"] == 3600
    assert project["store_passwords"] is False
    assert project["settings"] == {"quota": {"active_time_seconds": 100}}
    assert created["branch"]["name"] == "trunk"
    endpoint = created["endpoints"][0]
    assert endpoint["autoscaling_limit_max_cu"] == 0.5
    assert endpoint["suspend_timeout_seconds"] == -1
    assert endpoint["settings"] == {"pg_settings": {"work_mem": "6MB"}}
    with stack.compute(endpoint["id"], "orders € 1") as connection:
        row = connection.execute(
            "SELECT pg_get_userbyid(datdba), current_setting('work_mem') FROM pg_database"
            " WHERE datname = current_database()"
        ).fetchone()
    assert row == ("Ann", "6MB")
    uri = created["connection_uris"][0]["connection_uri"]
    assert "/orders%20%E2%82%AC%201?" in uri
    alice.delete(f"/projects/{project['id']}")


def test_a_long_database_name_gets_an_owner_with_a_valid_name(stack: Stack, alice: Client) -> None:
    name = "é" * 31  # 62 bytes
    created = alice.new_project(branch={"database_name": name})
    owner = created["roles"][0]["name"]
    assert len(owner.encode()) <= 63
    with stack.compute(created["endpoints"][0]["id"], name) as connection:
        row = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [owner])
        assert row.fetchone() == (1,)
    alice.delete(f"/projects/{created['project']['id']}")


@pytest.mark.parametrize(
    ("attributes", "status", "words"),
    [
        ({"name": "x" * 257}, 400, "project.name"),
        ({"name": " "}, 400, "project.name"),
        ({"name": "a\x00b"}, 400, "control characters"),
        ({"pg_version": 3}, 422, "pg_version 3 is not available"),
        ({"pg_version": "new"}, 400, "project.pg_version"),
        ({"pg_version": True}, 400, "project.pg_version"),
        ({"history_retention_seconds": False}, 400, "project.history_retention_seconds"),
        ({"provisioner": "x" * 33}, 400, "project.provisioner"),
        ({"region_id": "moon"}, 422, 'region "moon" does not exist; use one of: local'),
        ({"autoscaling_limit_min_cu": 2}, 400, "more than autoscaling_limit_max_cu 1"),
        ({"autoscaling_limit_max_cu": 100}, 400, "autoscaling_limit_max_cu"),
        ({"history_retention_seconds": -1}, 400, "history_retention_seconds"),
        ({"default_endpoint_settings": {"pg_settings": {"ssl": "on"}}}, 422, "platform"),
        ({"branch": {"name": "x" * 257}}, 400, "project.branch.name"),
        ({"branch": {"role_name": "r" * 64}}, 400, "at most 63 bytes"),
        ({"branch": {"database_name": "é" * 32}}, 400, "at most 63 bytes"),
        ({"branch": {"database_name": ""}}, 400, "database_name"),
        ({"branch": {"role_name": "pg_mine"}}, 422, "reserved"),
        ({"branch": {"role_name": "perch_platform"}}, 422, "reserved"),
        ({"branch": {"database_name": "template1"}}, 422, "reserved"),
        ({"settings": []}, 400, "project.settings"),
        ({"settings": {"allowed_ips": {"ips": ["\x00"]}}}, 400, "control characters"),
        ({"settings": {"allowed_ips": {"ips": ["\ud800"]}}}, 400, "not valid UTF-8"),
    ],
)
def test_refusals(alice: Client, attributes: dict[str, Any], status: int, words: str) -> None:
    answer = refusal(alice.call("POST", "/projects", json={"project": attributes}))
    assert (answer[0], words in answer[1]) == (status, True), answer
    assert alice.get("/projects") == NO_PROJECTS


def test_null_is_the_same_as_absent(alice: Client) -> None:
    names = ("name", "store_passwords", "history_retention_seconds", "settings")
    absent = dict.fromkeys(names)
    project = alice.post("/projects", {"project": {**absent, "branch": None}})["project"]
    assert (project["name"], project["store_passwords"]) == (project["id"], True)
