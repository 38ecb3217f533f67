"""Webhooks: listing, creating, testing, switching and deleting them, and their deliveries."""

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.console.conftest import Misbehaving, Person
from tests.console.pages import Page
from tests.support.waiting import wait_for

WEBHOOK = {
    "id": "wh-1",
    "url": "https://hooks.example.com/in?team=<b>",
    "event_types": ["operation.failed", "endpoint.idle", "branch.created"],
    "project_id": "p",
    "description": "The chat",
    "enabled": True,
    "created_at": "2026-11-20T10:00:00Z",
}
DELIVERED = {
    "id": "dlv-1",
    "event_type": "endpoint.idle",
    "status": "delivered",
    "attempts": 1,
    "created_at": "2026-11-20T10:00:00Z",
    "last_attempt": {"at": "2026-11-20T10:00:01Z", "status_code": 204, "error": None},
}
REFUSED = DELIVERED | {
    "id": "dlv-2",
    "status": "failed",
    "attempts": 14,
    "last_attempt": {"at": "2026-11-20T10:00:01Z", "status_code": 503, "error": "it answered 503"},
}


def answer_with(api: Misbehaving, *deliveries: dict[str, Any], **webhook: Any) -> None:
    body = {
        "webhook": WEBHOOK | webhook,
        "webhooks": [WEBHOOK | webhook],
        "deliveries": deliveries,
        "projects": [{"id": "p", "name": "shop"}],
    }
    api.body = json.dumps(body).encode()


def test_it_works(alice: Person) -> None:
    sent = {"url": "https://nobody.invalid/in", "event_types": ["project.created"]}
    answer = alice.post("/webhooks/new", sent)
    assert "whsec_" in Page(answer).text
    url = answer.content.decode().split('href="/webhooks/')[1].split('"')[0]
    url = f"/webhooks/{url}"
    assert "Project created" in Page(alice.get("/webhooks")).row("nobody.invalid")
    assert alice.post(f"{url}/test")["Location"] == url
    tried: list[str] = []

    def is_tried() -> bool:
        tried[:] = Page(alice.get(url)).rows()
        return len(tried) == 1 and "Pending" not in tried[0]

    wait_for(is_tried, "the end of the test")
    assert "Failed" in tried[0]
    assert "could not be resolved" in tried[0]
    assert tried[0].startswith("Test ")
    again = alice.get(url).content.decode().split(f'action="{url}/resend/')[1].split('"')[0]
    assert alice.post(f"{url}/resend/{again}")["Location"] == url
    alice.post(f"{url}/enable", {"to": "off"})
    assert "Disabled" in Page(alice.get("/webhooks")).row("nobody.invalid")
    alice.post(f"{url}/delete")
    assert "No webhooks yet" in Page(alice.get("/webhooks")).text


def test_an_address_that_is_not_allowed_is_refused_beside_its_field(alice: Person) -> None:
    answer = alice.post("/webhooks/new", {"url": "http://10.0.0.1/"})
    assert answer.status_code == 422
    assert list(answer.context["form"].errors) == ["url"]


def test_the_service_knows_each_offered_event_type(alice: Person) -> None:
    form = alice.get("/webhooks/new").content.decode()
    every = re.findall(r'name="event_types" value="([^"]+)"', form)
    assert len(every) > 30
    answer = alice.post("/webhooks/new", {"url": "https://nobody.invalid/", "event_types": every})
    assert "whsec_" in Page(answer).text


def test_rows_and_pages(dave: Person, misbehaving: Misbehaving) -> None:
    answer_with(misbehaving, DELIVERED, REFUSED)
    row = Page(dave.get("/webhooks")).row("hooks.example.com")
    assert "https://hooks.example.com/in?team=<b> The chat | Enabled | Project p" in row
    assert "Operation failed, Endpoint idle and 1 more" in row
    page = Page(dave.get("/webhooks/wh-1"))
    assert "<b>" not in page.html
    assert "Branch created" in page.text
    assert page.row("dlv-1").startswith("Endpoint idle dlv-1 | Delivered | 204 | 1")
    assert "Failed | It answered 503 | 14" in page.row("dlv-2")
    assert not page.polls


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"enabled": False, "disabled_reason": "it failed for a week"}, "it failed for a week"),
        ({"failing_since": "2026-11-20T10:00:00Z"}, "Every delivery has failed since 2026-11-20"),
        (
            {"failing_since": "2026-11-20T10:00:00Z", "last_error": "answered 503"},
            "Last error: answered 503.",
        ),
        ({"event_types": ["*"]}, "All events"),
        ({"project_id": None}, "All projects"),
    ],
)
def test_the_state_of_a_webhook(
    dave: Person, misbehaving: Misbehaving, fields: dict[str, Any], words: str
) -> None:
    answer_with(misbehaving, DELIVERED, REFUSED, **fields)
    assert words in Page(dave.get("/webhooks/wh-1")).text


def test_the_secret_is_shown_once(dave: Person, misbehaving: Misbehaving) -> None:
    answer_with(misbehaving)
    form = Page(dave.get("/webhooks/new"))
    assert form.options["project_id"] == ["", "p"]
    assert "Select none to receive all events" in form.text
    answer_with(misbehaving, secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    sent = {"url": "https://x.example", "event_types": ["operation.failed", "branch.created"]}
    answer = dave.post("/webhooks/new", sent)
    assert "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" in Page(answer).text
    assert answer["Cache-Control"] == "no-store"
    answer = dave.htmx_post("/webhooks/wh-1/rotate", at="/webhooks/wh-1")
    assert "whsec_" in Page(answer).text
    assert answer.content.decode().lstrip().startswith("<article")
    assert "whsec_" not in Page(dave.get("/webhooks/wh-1")).text


def test_editing(alice: Person) -> None:
    sent = {"url": "https://nobody.invalid/in", "event_types": ["project.created"]}
    url = alice.post("/webhooks/new", sent).content.decode().split('href="/webhooks/')[1]
    url = f"/webhooks/{url.split(chr(34))[0]}"
    form = Page(alice.get(f"{url}/edit"))
    assert form.fields["url"] == "https://nobody.invalid/in"
    assert 'value="project.created" checked' in re.sub(r" id=\S+", "", form.html)
    changed = {"url": "https://nobody.invalid/other", "description": "The chat"}
    assert alice.post(f"{url}/edit", changed)["Location"] == url
    found = alice.api.get(url)["webhook"]
    assert (found["url"], found["description"]) == tuple(changed.values())
    assert found["event_types"] == ["*"]
    refused = alice.post(f"{url}/edit", {"url": "ftp://nobody.invalid"})
    assert refused.status_code == 422
    assert 'id="id_url_error"' in refused.content.decode()


def test_a_refused_webhook_keeps_what_was_typed(dave: Person, misbehaving: Misbehaving) -> None:
    misbehaving.refuse(422, "the address is of this host")
    sent = {"url": "http://127.0.0.1/", "event_types": ["branch.created"], "description": "mine"}
    answer = dave.post("/webhooks/new", sent)
    assert answer.status_code == 422
    assert answer.context["form"].errors["url"] == ["The address is of this host."]
    page = Page(answer)
    assert page.fields["url"] == "http://127.0.0.1/"
    assert page.fields["description"] == "mine"
    assert 'value="branch.created" id="id_event_types_2_0" checked' in page.html


@pytest.mark.parametrize(
    ("path", "sent", "asked"),
    [
        ("test", {}, "POST /api/v2/webhooks/wh-1/test"),
        ("enable", {"to": "off"}, "PATCH /api/v2/webhooks/wh-1"),
        ("resend/dlv-2", {}, "POST /api/v2/webhooks/wh-1/deliveries/dlv-2/resend"),
        ("delete", {}, "DELETE /api/v2/webhooks/wh-1"),
    ],
)
def test_each_button_sends_its_request(
    dave: Person, misbehaving: Misbehaving, path: str, sent: dict[str, str], asked: str
) -> None:
    answer_with(misbehaving)
    answer = dave.post(f"/webhooks/wh-1/{path}", sent)
    assert answer["Location"] == ("/webhooks" if path == "delete" else "/webhooks/wh-1")
    assert misbehaving.asked == [asked]
    misbehaving.refuse(409, "it was turned off just now")
    answer = dave.post(f"/webhooks/wh-1/{path}", sent)
    answer_with(misbehaving)
    told = answer if path == "delete" else dave.get("/webhooks/wh-1")
    assert "It was turned off just now." in Page(told).text


def test_deleting_asks_for_confirmation(dave: Person, misbehaving: Misbehaving) -> None:
    answer_with(misbehaving)
    page = Page(dave.get("/webhooks/wh-1/delete"))
    assert "hooks.example.com" in page.text
    assert "Deliveries" in page.text
    assert {one.split()[0] for one in misbehaving.asked} == {"GET"}


def test_a_delivery_in_progress_is_polled(dave: Person, misbehaving: Misbehaving) -> None:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    pending = DELIVERED | {"status": "pending", "attempts": 0, "created_at": now}
    pending["last_attempt"] = None
    answer_with(misbehaving, pending)
    assert Page(dave.get("/webhooks/wh-1")).pause == 1000
    assert Page(dave.htmx_get("/webhooks/wh-1/live")).pause == 1000
    answer_with(misbehaving, pending | {"created_at": "2026-11-20T10:00:00Z"})
    assert not Page(dave.get("/webhooks/wh-1")).polls


def test_a_server_without_webhooks_says_so(dave: Person, misbehaving: Misbehaving) -> None:
    misbehaving.refuse(404, "no such route")
    answer = dave.get("/webhooks")
    assert answer.status_code == 404
    assert "The server does not support webhooks." in Page(answer).text
