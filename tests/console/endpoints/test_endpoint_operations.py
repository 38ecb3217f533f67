"""The endpoint's page finds its operations, whether or not the server filters."""

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from console.endpoints import views as endpoint_operations
from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.pages import Page
from tests.support.waiting import wait_for


def operations(count: int, *own: int) -> list[dict[str, Any]]:
    """Return so many operations of the project. Those at the places in `own` are the endpoint's."""
    return [
        {
            "id": f"op-{place}",
            "action": "start_compute",
            "status": "finished",
            "endpoint_id": "e" if place in own else "other",
        }
        for place in range(count)
    ]


@pytest.fixture
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_operations, "PAGE_SIZE", 10)


def answer_with(api: Misbehaving, rows: list[dict[str, Any]]) -> None:
    """Answer as a server that ignores filters. Only the lists of operations have rows."""

    def answer(path: str) -> bytes:
        query = parse_qs(urlsplit(path).query)
        start = int(query.get("cursor", ["0"])[0])
        found = rows[start : start + int(query.get("limit", ["100"])[0])]
        body = {
            "project": {"id": "p"},
            "endpoint": {"id": "e"},
            "branches": [],
            "operations": found,
            "pagination": {"cursor": str(start + len(found))},
        }
        return json.dumps(body).encode()

    api.respond = answer


def test_it_reads_pages_until_it_has_found_enough(
    dave: Person, misbehaving: Misbehaving, short_pages: None
) -> None:
    answer_with(misbehaving, operations(45, 37))
    page = Page(dave.get("/projects/p/endpoints/e"))
    assert "op-37" in page.html
    assert "No operation" not in page.text.replace("No operation in progress", "")


def test_it_does_not_say_none_before_it_has_read_all(
    dave: Person, misbehaving: Misbehaving, short_pages: None
) -> None:
    answer_with(misbehaving, operations(95, 77))
    page = Page(dave.get("/projects/p/endpoints/e"))
    assert "None of the latest 50 operations of the project belong to this endpoint" in page.text
    assert "Older" in page.text
    further = Page(dave.get("/projects/p/endpoints/e?older=50"))
    assert "op-77" in further.html


def test_it_says_none_if_there_is_none(
    dave: Person, misbehaving: Misbehaving, short_pages: None
) -> None:
    answer_with(misbehaving, operations(15))
    page = Page(dave.get("/projects/p/endpoints/e"))
    assert "No operations yet" in page.text


def test_its_starts_are_read_apart_only_if_it_has_more_operations(
    dave: Person, misbehaving: Misbehaving, short_pages: None
) -> None:
    for count, calls in ((15, 0), (95, 1)):
        answer_with(misbehaving, operations(count, 7))
        dave.get("/projects/p/endpoints/e")
        assert misbehaving.asked_for("action=start_compute") == calls


def test_other_operations_of_a_busy_project_hide_none(alice: Person, shop: Shop) -> None:
    """Perch filters by itself: one call is enough, however many other operations there are."""
    page = Page(alice.get(shop.endpoint_url))
    assert any("Start endpoint | OK" in row for row in page.rows())
    assert "of the latest" not in page.text
    assert f"operations?endpoint_id={shop.endpoint_id}" in page.html


def test_an_action_in_progress_is_not_offered_again(alice: Person, shop: Shop) -> None:
    """A start in progress can be cancelled, and so can a suspend."""
    shop.suspend()
    start, suspend = f"{shop.endpoint_url}/start", f"{shop.endpoint_url}/suspend"
    with shop.locked():
        alice.post(start)
        html = Page(alice.get(shop.endpoint_url)).html
        assert "starting…" in html
        assert start not in html
        assert suspend in html
        assert alice.post(suspend)["Location"] == shop.endpoint_url
        html = Page(alice.get(shop.endpoint_url)).html
        assert start in html
        assert suspend not in html
    wait_for(lambda: not Page(alice.get(shop.endpoint_url)).polls, "all has ended")
    assert shop.endpoint()["current_state"] == "idle"
