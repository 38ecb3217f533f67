"""Webhooks in the API."""

import base64
from typing import Any

import pytest

from controlplane.events.types import EventType
from tests.support.client import Client
from tests.support.project import Project, refusal
from tests.support.stack import Stack
from tests.support.webhooks import Webhook

URL = "https://hooks.example/perch"


def created(client: Client, **attributes: Any) -> Any:
    body = {"webhook": {"url": URL, "event_types": ["*"], **attributes}}
    return client.post("/webhooks", body)["webhook"]


def refused(client: Client, **attributes: Any) -> tuple[int, str]:
    body = {"webhook": {"url": URL, "event_types": ["*"], **attributes}}
    return refusal(client.call("POST", "/webhooks", json=body))


def whsec(length: int) -> str:
    return "whsec_" + base64.b64encode(b"k" * length).decode()


def test_it_works(alice: Client) -> None:
    body = {"webhook": {"url": URL, "event_types": ["branch.created"], "description": "ours"}}
    answer = alice.call("POST", "/webhooks", json=body)
    assert answer.status_code == 201
    made = answer.json()["webhook"]
    secret = made.pop("secret")
    assert len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) == 32
    assert made.keys() == {
        *("id", "url", "event_types", "description", "enabled", "created_at", "updated_at")
    }
    assert made["id"].startswith("wh-")
    assert (made["url"], made["event_types"], made["enabled"]) == (URL, ["branch.created"], True)
    # The secret is not returned again.
    assert alice.get("/webhooks") == {"webhooks": [made]}
    assert alice.get(f"/webhooks/{made['id']}") == {"webhook": made}

    wanted = {"url": URL + "/2", "event_types": ["*"], "description": "", "enabled": False}
    changed = alice.patch(f"/webhooks/{made['id']}", {"webhook": wanted})["webhook"]
    assert wanted.items() <= changed.items()
    assert alice.delete(f"/webhooks/{made['id']}") == {"webhook": changed}
    assert alice.get("/webhooks") == {"webhooks": []}
    assert refusal(alice.call("DELETE", f"/webhooks/{made['id']}")) == (404, "webhook not found")


def test_the_secret_is_kept_encrypted(stack: Stack, alice: Client) -> None:
    made = created(alice)
    with stack.database() as database:
        row = database.execute(
            "SELECT secret FROM controlplane_webhook WHERE id = %s", [made["id"]]
        ).fetchone()
    assert row is not None
    assert row[0].startswith("gAAAA")  # the prefix of Fernet
    assert made["secret"].removeprefix("whsec_") not in row[0]


@pytest.mark.parametrize("length", [24, 64])
def test_a_secret_chosen_by_the_caller(alice: Client, length: int) -> None:
    assert created(alice, secret=whsec(length))["secret"] == whsec(length)


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_***", whsec(23), whsec(65), whsec(32)[6:], "whsec_é"]
)
def test_invalid_secrets(alice: Client, secret: str) -> None:
    status, message = refused(alice, secret=secret)
    assert (status, "24 to 64 random bytes" in message) == (400, True)


def test_unknown_event_types_are_refused_with_the_known_ones(alice: Client) -> None:
    status, message = refused(alice, event_types=["branch.created", "branch.exploded"])
    assert status == 400
    assert 'unknown event type "branch.exploded"; use project.created' in message
    for kind in EventType:
        assert (str(kind) in message) == (kind != EventType.WEBHOOK_TEST)
    made = created(alice, event_types=[str(EventType.BRANCH_CREATED)] * 2)
    assert made["event_types"] == ["branch.created"]
    answer = alice.call("PATCH", f"/webhooks/{made['id']}", json={"webhook": {"event_types": []}})
    assert refusal(answer)[0] == 400


@pytest.mark.parametrize(
    "attributes",
    [
        {"url": "https://10.0.0.1/"},
        {"url": "https://user:word@hooks.example/"},
        {"url": "ftp://hooks.example/"},
        {"url": "https://hooks.example/" + "x" * 2048},
        {"url": 7},
        {"url": None},
        {"event_types": "*"},
        {"event_types": None},
        {"description": "x" * 257},
        {"description": "a\0b"},
        {"enabled": "perhaps"},
    ],
)
def test_refused_attributes(alice: Client, attributes: Any) -> None:
    assert refused(alice, **attributes)[0] == 400
    assert alice.get("/webhooks") == {"webhooks": []}


def test_a_webhook_of_one_project(alice: Client, project: Project) -> None:
    of_project = created(project.client, project_id=project.id)
    of_account = created(project.client)
    assert of_project["project_id"] == project.id
    assert "project_id" not in of_account
    listed = project.client.get("/webhooks", project_id=project.id)["webhooks"]
    assert [one["id"] for one in listed] == [of_project["id"]]
    assert len(project.client.get("/webhooks")["webhooks"]) == 2
    path = f"/webhooks/{of_account['id']}"
    answer = project.client.call("PATCH", path, json={"webhook": {"project_id": project.id}})
    assert refusal(answer)[0] == 422
    assert refused(alice, project_id=project.id) == (404, "project not found")
    for one in (of_project, of_account):
        project.client.delete(f"/webhooks/{one['id']}")


def test_the_number_per_account_is_limited(stack: Stack, alice: Client) -> None:
    made = created(alice)
    with stack.database() as database:
        database.execute(
            "INSERT INTO controlplane_webhook SELECT (populated).* FROM ("
            " SELECT jsonb_populate_record(one, jsonb_build_object('id', one.id || number))"
            " AS populated FROM controlplane_webhook one, generate_series(2, 50) number"
            " WHERE one.id = %s) AS copies",
            [made["id"]],
        )
    body = {"webhook": {"url": URL, "event_types": ["*"]}}
    answer = alice.call("POST", "/webhooks", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "WEBHOOKS_LIMIT_EXCEEDED")
    alice.delete(f"/webhooks/{made['id']}")
    created(alice)


def test_another_account_sees_nothing(stack: Stack, alice: Client, bob: Client) -> None:
    webhook = Webhook(stack, alice, URL)
    delivery = webhook.test()
    paths = [
        ("GET", ""),
        ("PATCH", ""),
        ("DELETE", ""),
        ("POST", "/test"),
        ("POST", "/rotate_secret"),
        ("GET", "/deliveries"),
        ("GET", f"/deliveries/{delivery['id']}"),
        ("POST", f"/deliveries/{delivery['id']}/resend"),
    ]
    for method, rest in paths:
        body = {"webhook": {"enabled": False}} if method == "PATCH" else None
        answer = bob.call(method, webhook.path + rest, json=body)
        assert refusal(answer) == (404, "webhook not found"), (method, rest)
    # Not through a webhook of his own either.
    own = Webhook(stack, bob, URL)
    for method, rest in (("GET", ""), ("POST", "/resend")):
        answer = bob.call(method, f"{own.path}/deliveries/{delivery['id']}{rest}")
        assert refusal(answer) == (404, "delivery not found")
    assert bob.get("/webhooks")["webhooks"] == [own.get()]
    assert webhook.get()["enabled"]


@pytest.mark.parametrize(
    "delivery_id", ["1", "dlv-", "dlv-x", "dlv-²", "dlv-" + "9" * 30, "dlv--1"]
)
def test_an_unknown_delivery(alice: Client, delivery_id: str) -> None:
    path = f"/webhooks/{created(alice)['id']}/deliveries"
    answer = alice.call("GET", f"{path}/{delivery_id}")
    assert refusal(answer) == (404, "delivery not found")
    assert refusal(alice.call("GET", path, params={"cursor": delivery_id}))[0] == 400


def test_a_disabled_webhook_sends_nothing(stack: Stack, alice: Client) -> None:
    webhook = Webhook(stack, alice, URL, enabled=False)
    for rest in ("/test", "/deliveries/dlv-1/resend"):
        status, _ = refusal(alice.call("POST", webhook.path + rest))
        assert status in (404, 409)
    assert refusal(alice.call("POST", f"{webhook.path}/test"))[0] == 409
    webhook.write_events(["unheard"])
    assert webhook.deliveries() == []


def test_changes_of_webhooks_are_events_without_secrets(stack: Stack, alice: Client) -> None:
    webhook = Webhook(stack, alice, URL + "?token=abc")
    webhook.change(url=URL + "?token=def", enabled=False)
    alice.post(f"{webhook.path}/rotate_secret")
    webhook.delete()
    with stack.database() as database:
        rows = database.execute(
            "SELECT type, actor_type, summary, changes FROM controlplane_event"
            " WHERE summary LIKE %s ORDER BY id",
            [f"%{webhook.id}%"],
        ).fetchall()
    kinds = ["webhook.created", "webhook.updated", "webhook.updated", "webhook.deleted"]
    assert [row[0] for row in rows] == kinds
    assert {row[1] for row in rows} == {"user"}
    shown = "https://hooks.example/…"
    assert rows[1][3] == {
        "url": {"from": shown, "to": shown},
        "enabled": {"from": True, "to": False},
    }
    assert rows[2][3] == {"secret": {"from": None, "to": None}}
    assert not any(word in str(rows) for word in ("abc", "def", "whsec", webhook.secret))
