"""Every change is recorded as an event: what changed, of which resource, and by whom. None has a
secret."""

import json
from collections.abc import Iterable
from typing import Any

import psycopg

from tests.support.client import Client
from tests.support.project import Project, refusal
from tests.support.stack import Stack
from tests.support.waiting import wait_for

FIELDS = {
    "id": str,
    "type": str,
    "project_id": str | None,
    "branch_id": str | None,
    "endpoint_id": str | None,
    "operation_ids": list,
    "actor": dict,
    "at": str,
    "summary": str,
    "changes": dict,
    "operation": dict | None,
}


def events(client: Client, path: str = "", **query: Any) -> list[Any]:
    """Newest first."""
    found: list[Any] = client.get(f"{path}/events", limit=1000, **query)["events"]
    return found


def types(found: Iterable[Any]) -> list[str]:
    return [event["type"] for event in found]


class Recorded:
    """The events of an account that were recorded since the last call, oldest first."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.seen = {event["id"] for event in events(client)}

    def now(self) -> list[Any]:
        new = [event for event in events(self.client) if event["id"] not in self.seen]
        self.seen |= {event["id"] for event in new}
        return new[::-1]


def test_it_works(alice: Client) -> None:
    created = alice.new_project(name="birds", wait=False)
    project, branch, endpoint = created["project"], created["branch"], created["endpoints"][0]
    ids = [operation["id"] for operation in created["operations"]]
    alice.finish(created)
    recorded = events(alice)[::-1]
    assert types(recorded) == [
        *("project.created", "branch.created", "endpoint.created"),
        *("role.created", "database.created"),
        *("operation.finished", "operation.finished", "endpoint.active"),
    ]
    for event in recorded:
        assert event.keys() == FIELDS.keys()
        assert all(isinstance(event[name], kind) for name, kind in FIELDS.items())
        assert event["project_id"] == project["id"]
        actor = event["actor"]
        assert actor.keys() == {"type", "name", "api_key_id", "address"}
        assert (actor["type"], actor["name"], actor["address"]) == ("user", "tests", "127.0.0.1")
        assert isinstance(actor["api_key_id"], int)
    first, *_, active = recorded
    assert first["summary"] == 'The project "birds" was created'
    assert first["operation_ids"] == ids
    assert first["changes"]["name"] == {"from": None, "to": "birds"}
    assert (active["branch_id"], active["endpoint_id"]) == (branch["id"], endpoint["id"])
    assert active["operation_ids"] == ids[1:]
    assert active["changes"] == {"current_state": {"from": "init", "to": "active"}}
    assert events(alice, f"/projects/{project['id']}") == recorded[::-1]


def test_every_change_is_recorded_without_secrets(fresh_project: Project, stack: Stack) -> None:
    project, alice = fresh_project, fresh_project.client
    secrets = [alice.key, project.created["roles"][0]["password"]]
    recorded = Recorded(alice)

    def does(call: Any, *expected: str, by: str = "user") -> list[Any]:
        """Return what the call records, once its operations have ended."""
        if isinstance(call, dict) and "operations" in call:
            alice.finish(call)
        new = recorded.now()
        assert types(new) == list(expected), new
        assert {event["actor"]["type"] for event in new} <= {by}
        return new

    finished = "operation.finished"
    (changed,) = does(
        alice.patch(
            project.path,
            {
                "project": {
                    "name": "renamed",
                    "settings": {"quota": {"active_time_seconds": 3600}},
                    "default_endpoint_settings": {"pg_settings": {"work_mem": "8MB"}},
                }
            },
        ),
        "project.updated",
    )
    assert changed["changes"]["name"]["to"] == "renamed"
    assert changed["changes"]["default_endpoint_settings.pg_settings.work_mem"] == {
        "from": None,
        "to": "8MB",
    }
    assert changed["changes"]["settings.quota.active_time_seconds"]["to"] == 3600
    branch = project.branch_path()
    role = alice.post(branch + "/roles", {"role": {"name": "bob"}})
    secrets.append(role["role"]["password"])
    (made, _) = does(role, "role.created", finished)
    assert made["changes"]["name"] == {"from": None, "to": "bob"}
    assert made["operation_ids"] == [one["id"] for one in role["operations"]]
    reset = alice.post(branch + "/roles/bob/reset_password")
    secrets.append(reset["role"]["password"])
    does(reset, "role.password_reset", finished)
    uri = f"{project.path}/connection_uri?database_name=neondb&role_name=bob"
    does(alice.get(uri), "role.password_revealed")
    # A session that reads it again and again is one event; an explicit request is always one.
    does(alice.get(uri))
    does(alice.get(f"{uri}&password=false"))
    does(alice.get(branch + "/roles/bob/reveal_password"), "role.password_revealed")
    database = {"database": {"name": "nests", "owner_name": "bob"}}
    does(alice.post(branch + "/databases", database), "database.created", finished)
    owner = {"database": {"owner_name": "neondb_owner", "name": "eggs"}}
    (renamed, _) = does(
        alice.patch(branch + "/databases/nests", owner), "database.updated", finished
    )
    assert renamed["changes"]["owner_name"] == {"from": "bob", "to": "neondb_owner"}
    assert renamed["changes"]["name"] == {"from": "nests", "to": "eggs"}
    does(alice.delete(branch + "/databases/eggs"), "database.deleted", finished)
    does(alice.delete(branch + "/roles/bob"), "role.deleted", finished)

    child = alice.post(project.path + "/branches", {"branch": {"name": "dev"}})
    (created, _) = does(child, "branch.created", finished)
    assert created["changes"]["parent_id"] == {"from": None, "to": project.branch_id}
    child_path = project.branch_path(child["branch"]["id"])
    does(alice.patch(child_path, {"branch": {"name": "test"}}), "branch.updated")
    default = does(alice.post(child_path + "/set_as_default"), "branch.updated", "branch.updated")
    assert [one["changes"] for one in default] == [
        {"default": {"from": True, "to": False}},
        {"default": {"from": False, "to": True}},
    ]
    does(alice.post(branch + "/set_as_default"), "branch.updated", "branch.updated")

    endpoint = project.endpoint_path()
    idle, active = "endpoint.idle", "endpoint.active"
    size = {
        "endpoint": {
            "autoscaling_limit_max_cu": 2,
            "settings": {"pg_settings": {"work_mem": "9MB"}},
        }
    }
    (grown, _) = does(alice.patch(endpoint, size), "endpoint.updated", finished)
    assert grown["changes"]["autoscaling_limit_max_cu"] == {"from": 1, "to": 2}
    assert grown["changes"]["settings.pg_settings.work_mem"]["to"] == "9MB"
    does(alice.post(endpoint + "/suspend"), "endpoint.suspend_requested", finished, idle)
    does(alice.post(endpoint + "/start"), "endpoint.start_requested", finished, active)
    does(
        alice.post(endpoint + "/restart"),
        *("endpoint.restart_requested", finished, idle, finished, active),
    )
    moved = does(
        alice.patch(endpoint, {"endpoint": {"branch_id": child["branch"]["id"]}}),
        *("endpoint.updated", finished, finished, idle),
    )
    assert moved[0]["changes"] == {
        "branch_id": {"from": project.branch_id, "to": child["branch"]["id"]}
    }
    with psycopg.connect(
        project.created["connection_uris"][0]["connection_uri"], hostaddr="127.0.0.1"
    ):
        pass
    wait_for(lambda: project.endpoint()["current_state"] == "active", "the wake")
    woken = does(None, "endpoint.start_requested", finished, active, by="client")
    assert woken[0]["actor"]["name"] == "neondb_owner"
    assert woken[0]["actor"]["address"] == "127.0.0.1"
    does(alice.delete(endpoint), "endpoint.deleted")

    other = alice.post(
        project.path + "/endpoints",
        {"endpoint": {"branch_id": child["branch"]["id"], "type": "read_write"}},
    )
    does(other, "endpoint.created", finished, active)
    gone = alice.delete(child_path)
    does(
        gone,
        *("branch.delete_requested", finished, idle),
        *(finished, "endpoint.deleted", "branch.deleted"),
    )
    key = alice.post("/api_keys", {"key_name": "ci"})
    secrets.append(key["key"])
    does(key, "api_key.created")
    does(alice.delete(f"/api_keys/{key['id']}"), "api_key.revoked")
    does(alice.delete(f"/api_keys/{key['id']}"))
    does(alice.delete(project.path), "project.deleted", by="user")
    assert refusal(alice.call("GET", project.path + "/events"))[0] == 404
    with stack.database() as connection:
        rows = connection.execute(
            "SELECT verifier, encrypted_password FROM controlplane_role WHERE branch_id = %s",
            [project.branch_id],
        ).fetchall()
        secrets += [text for row in rows for text in row if text]
        secrets += [
            digest for (digest,) in connection.execute("SELECT digest FROM controlplane_apikey")
        ]
    text = json.dumps(events(alice), ensure_ascii=False)
    assert len(secrets) > 6
    assert not [secret for secret in secrets if secret in text]
    assert "SCRAM" not in text
    assert "postgresql://" not in text


def test_a_rollback_of_refused_settings_is_recorded(project: Project) -> None:
    recorded = Recorded(project.client)
    wrong = {"endpoint": {"settings": {"pg_settings": {"timezone": "UTC+200"}}}}
    project.client.finish(project.client.patch(project.endpoint_path(), wrong))
    requested, failed, back = recorded.now()
    assert types([requested, failed, back]) == [
        "endpoint.updated",
        "operation.failed",
        "endpoint.updated",
    ]
    assert failed["summary"].startswith("The operation apply_config has failed: ")
    assert failed["changes"] == {"status": {"from": "running", "to": "failed"}}
    (operation_id,) = failed["operation_ids"]
    assert (failed["operation"]["id"], failed["operation"]["action"]) == (
        operation_id,
        "apply_config",
    )
    assert failed["summary"].endswith(f"has failed: {failed['operation']['error']}")
    path = f"{project.path}/operations/{operation_id}"
    told = project.client.get(path)["operation"]["total_duration_ms"]
    assert failed["operation"]["duration_ms"] == told
    assert requested["operation"] is None
    (field,) = back["changes"]
    assert back["changes"][field] == {"from": "UTC+200", "to": None}
