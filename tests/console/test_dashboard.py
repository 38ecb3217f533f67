"""The dashboard: an account's projects."""

import json
from typing import Any

import pytest

from console import listing
from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.pages import Page
from tests.support.waiting import wait_for


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
    monkeypatch.setattr(listing.listing, "__kwdefaults__", {"size": 2})
    names = {f"project {number}" for number in range(3)}
    for name in names:
        alice.api.new_project(name=name, wait=False)
    first = alice.get("/")
    assert len(first.context["listing"].rows) == 2
    assert "Next" in Page(first).text
    second = alice.browser.get("/", {"page": "2"})
    rows = (*first.context["listing"].rows, *second.context["listing"].rows)
    assert {row.project.name for row in rows} == names
    assert "Next" not in Page(second).text
    assert "Previous" in Page(second).text


def test_projects_are_searched_and_sorted(alice: Person) -> None:
    for name in ("xx bee", "xx ant", "xx cat"):
        alice.api.new_project(name=name, wait=False)

    def names(**asked: str) -> list[str]:
        rows = alice.browser.get("/", asked).context["listing"].rows
        return [row.project.name for row in rows]

    assert names() == ["xx cat", "xx ant", "xx bee"]
    assert names(sort="name") == ["xx ant", "xx bee", "xx cat"]
    assert names(search="  ANT xx ", sort="name") == ["xx ant"]
    assert names(page="99", sort="nonsense") == ["xx cat", "xx ant", "xx bee"]
    assert "No project matches “dog”" in Page(alice.browser.get("/", {"search": "dog"})).text


def test_it_tells_what_goes_on_and_what_went_wrong(alice: Person, shop: Shop) -> None:
    path = f"/projects/{shop.id}/endpoints/{shop.endpoint_id}"
    with shop.locked():
        alice.api.post(f"{path}/restart")
        page = Page(alice.get("/"))
        assert "2 operations in progress" in page.text
        assert "2 in progress" in page.row("shop")
    wait_for(lambda: "Nothing in progress" in Page(alice.get("/")).text, "it is quiet")
    wrong = {"endpoint": {"settings": {"pg_settings": {"timezone": "UTC+200"}}}}
    alice.api.finish(alice.api.patch(path, wrong))
    page = Page(alice.get("/"))
    row = page.row("shop")
    for words in ("1 failed", "woke", "slept"):
        assert words in row
    assert "1 failed in the last day" in page.text
    assert "“Apply configuration” has failed" in page.text


def test_with_many_projects_it_makes_no_more_calls(dave: Person, misbehaving: Misbehaving) -> None:
    found = [{"id": f"p-{number}", "name": f"project {number}"} for number in range(200)]
    states = [
        {"project_id": "p-7", "endpoints": {"active": 2}, "unfinished_operations": 1},
    ]

    def perch(path: str) -> bytes:
        rows = states if "/states" in path else found
        return json.dumps({"projects": rows, "events": []}).encode()

    misbehaving.respond = perch
    page = Page(dave.get("/?search=project+7"))
    assert len(misbehaving.asked) == 3
    assert "2 Active" in page.row("p-7 ")
    assert len(page.rows()) <= 25


def test_another_server_is_asked_for_those_that_are_shown_alone(
    dave: Person, misbehaving: Misbehaving
) -> None:
    found = [{"id": f"p-{number}", "name": f"project {number}"} for number in range(200)]

    def another(path: str) -> bytes:
        if "/states" in path or "/events" in path:
            return b"{}"
        return json.dumps({"projects": found, "endpoints": [{"id": "e"}]}).encode()

    misbehaving.respond = another
    page = Page(dave.get("/"))
    assert len(misbehaving.asked) == 3 + 25
    assert all("1 Idle" in row for row in page.rows())


def test_a_broken_cursor_is_a_page_not_a_crash(carol: Person, still_shop: Shop) -> None:
    assert carol.browser.get("/", {"cursor": "no such place"}).status_code in (200, 400)


def test_names_with_markup_are_text(alice: Person) -> None:
    alice.api.new_project(name="<script>alert(1)</script>", wait=False)
    answer: Any = alice.get("/")
    assert b"<script>alert" not in answer.content
    assert "<script>alert(1)</script>" in Page(answer).row("alert")
