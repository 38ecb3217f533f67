"""The dashboard: an account's projects."""

from typing import Any

import pytest

from console.views import projects
from tests.console.conftest import Person, Shop
from tests.console.pages import Page


def test_it_works(carol: Person, still_shop: Shop) -> None:
    row = Page(carol.get("/")).row("shop")
    assert still_shop.id in row
    assert "local" in row
    assert "1 Active" in row


def test_endpoints_are_counted_by_state(alice: Person, shop: Shop) -> None:
    stopped = alice.api.patch(
        f"/projects/{shop.id}/endpoints/{shop.endpoint_id}", {"endpoint": {"disabled": True}}
    )
    alice.api.finish(stopped)
    body = {"endpoint": {"branch_id": shop.dev_id, "type": "read_write"}}
    alice.api.finish(alice.api.post(f"/projects/{shop.id}/endpoints", body))
    row = Page(alice.get("/")).row("shop")
    assert "1 Active" in row
    assert "1 Stopped" in row
    assert "Idle" not in row


def test_without_projects_it_says_what_to_do(alice: Person) -> None:
    page = Page(alice.get("/"))
    assert "Nothing perches here yet" in page.text
    assert "/new-project" in page.html


def test_other_accounts_projects_are_not_there(
    carol: Person, bob: Person, still_shop: Shop
) -> None:
    assert still_shop.id not in Page(bob.get("/")).text


def test_projects_come_page_by_page(alice: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projects, "PROJECTS_A_PAGE", 2)
    names = {f"project {number}" for number in range(3)}
    for name in names:
        alice.api.new_project(name=name, wait=False)
    first = alice.get("/")
    assert len(first.context["rows"]) == 2
    assert "More projects" in Page(first).text
    second = alice.browser.get("/", {"cursor": first.context["next_cursor"]})
    seen = [row.project.name for row in (*first.context["rows"], *second.context["rows"])]
    assert set(seen) == names
    assert "More projects" not in Page(second).text


def test_a_broken_cursor_is_a_page_not_a_crash(carol: Person, still_shop: Shop) -> None:
    assert carol.browser.get("/", {"cursor": "no such place"}).status_code in (200, 400)


def test_names_with_markup_are_text(alice: Person) -> None:
    alice.api.new_project(name="<script>alert(1)</script>", wait=False)
    answer: Any = alice.get("/")
    assert b"<script>alert" not in answer.content
    assert "<script>alert(1)</script>" in Page(answer).row("alert")
