"""The dashboard: an account's projects."""

import itertools
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from console.pages import listing
from console.projects import dashboard
from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.pages import Page


def test_it_works(carol: Person, still_shop: Shop) -> None:
    row = Page(carol.get("/")).row("shop")
    assert still_shop.id in row
    assert "local" in row
    assert "1 Active" in row


def test_without_projects_it_says_how_to_create_one(alice: Person) -> None:
    page = Page(alice.get("/"))
    assert "No projects yet" in page.text
    assert "/new-project" in page.html


def test_other_accounts_projects_are_not_listed(
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
    # No generated id contains this word.
    for name in ("xx 1bee", "xx 2ant", "xx 3cat"):
        alice.api.new_project(name=name, wait=False)

    def names(**query: str) -> list[str]:
        rows = alice.browser.get("/", query).context["listing"].rows
        return [row.project.name for row in rows]

    assert names() == ["xx 3cat", "xx 2ant", "xx 1bee"]
    assert names(sort="name") == ["xx 1bee", "xx 2ant", "xx 3cat"]
    assert names(search="  2ANT xx ", sort="name") == ["xx 2ant"]
    assert names(page="0") == names()
    assert names(page="99", sort="nonsense") == ["xx 3cat", "xx 2ant", "xx 1bee"]
    assert "No project matches “dog”" in Page(alice.browser.get("/", {"search": "dog"})).text


def test_the_number_of_calls_does_not_grow_with_the_projects(
    dave: Person, misbehaving: Misbehaving
) -> None:
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


# The response as a list, and as the states of projects.
NAMED = {"p": "shop", "q": "still"}
PROJECTS = json.dumps(
    {"projects": [{"id": one, "project_id": one, "name": name} for one, name in NAMED.items()]}
).encode()


def failed(number: int, project_id: str) -> dict[str, Any]:
    at = (datetime.now(UTC) - timedelta(minutes=number)).isoformat()
    about = {"project_id": project_id, "summary": f"Failure {number}.", "at": at}
    return {"id": str(number), "type": "operation.failed", **about}


def test_a_failure_is_found_among_many_wakes(dave: Person, misbehaving: Misbehaving) -> None:
    def perch(path: str) -> bytes:
        if "/events" not in path:
            return PROJECTS
        woke = {"id": "w", "type": "endpoint.active", "project_id": "p"}
        is_of_failures = "type=operation.failed&" in path
        found = [failed(1, "p")] if is_of_failures else [woke] * dashboard.MAX_EVENTS
        return json.dumps({"events": found, "pagination": {"cursor": "c"}}).encode()

    misbehaving.respond = perch
    page = Page(dave.get("/"))
    assert "1 failed in the last day" in page.text
    assert "at least" not in page.text
    assert "Failure 1." in page.text
    assert "1 failed 300+ starts" in page.row("shop")


def test_no_link_leads_to_what_has_been_deleted(dave: Person, misbehaving: Misbehaving) -> None:
    about: dict[str, Any] = {"project_id": "p", "type": "endpoint.idle"}
    events = [
        about | {"id": "4", "type": "endpoint.deleted", "endpoint_id": "ep-a"},
        about | {"id": "3", "type": "branch.deleted", "branch_id": "br-b"},
        about | {"id": "2", "endpoint_id": "ep-b", "branch_id": "br-b"},
        about | {"id": "1", "endpoint_id": "ep-a", "branch_id": "br-a"},
        about | {"id": "0", "endpoint_id": "ep-c", "branch_id": "br-c"},
    ]

    def perch(path: str) -> bytes:
        return PROJECTS if "/events" not in path else json.dumps({"events": events}).encode()

    misbehaving.respond = perch
    page = Page(dave.get("/"))
    assert [one for one in "abc" if f'href="/projects/p/endpoints/ep-{one}"' in page.html] == ["c"]
    # The deletions themselves are not listed.
    assert "Endpoint deleted" not in page.text


def test_failures_beyond_those_read_are_counted_as_at_least(
    dave: Person, misbehaving: Misbehaving
) -> None:
    def perch(path: str) -> bytes:
        if "/events" not in path:
            return PROJECTS
        # The newest failures are of deleted projects.
        found = [failed(number, "gone") for number in range(dashboard.MAX_EVENTS - 1)]
        found.append(failed(500, "p"))
        return json.dumps({"events": found, "pagination": {"cursor": "c"}}).encode()

    misbehaving.respond = perch
    page = Page(dave.get("/"))
    assert "at least 1 failed in the last day" in page.text
    assert "Failure 500." in page.text
    assert "Failure 1." not in page.text
    assert "unknown" in page.row("still")


@pytest.mark.parametrize("call", ["/projects/states", "/events"])
def test_a_list_that_cannot_be_read_is_reported(
    dave: Person, misbehaving: Misbehaving, call: str
) -> None:
    misbehaving.body = PROJECTS[:-1] + b', "events": []}'
    failure = b'{"message": "the disk is full"}'
    misbehaving.apart = {call: (500, failure)}
    page = Page(dave.get("/"))
    assert "The management API failed: the disk is full" in page.text
    assert "shop" in page.row("shop")
    assert "No failures" not in page.text
    # A call that the server lacks, or that the key may not make, is not a failure.
    for status in (403, 404):
        misbehaving.apart = {call: (status, failure)}
        assert "the disk is full" not in Page(dave.get("/")).text


@pytest.mark.thorough
def test_another_server_is_asked_only_for_the_projects_shown(
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
    # Nothing is known of the operations of this project.
    assert "quiet" not in page.text
    assert all("1 Idle" in row for row in page.rows())


def test_a_server_that_takes_states_for_the_id_of_a_project_has_none(
    dave: Person, misbehaving: Misbehaving
) -> None:
    misbehaving.body = PROJECTS[:-1] + b', "events": []}'
    misbehaving.apart = {"/projects/states": (200, b'{"project": {"id": "states"}}')}
    page = Page(dave.get("/"))
    assert "shop" in page.row("shop")
    assert 'class="error"' not in page.html


@pytest.mark.parametrize("path", ["/go", "/webhooks/new", "/api-keys/new"])
def test_projects_of_all_pages_can_be_chosen(
    dave: Person, misbehaving: Misbehaving, path: str
) -> None:
    def page_of_100(path: str) -> bytes:
        first = int(re.search(r"cursor=(\d+)|$", path)[1] or 0)  # type: ignore[index]
        if path.partition("?")[0].endswith("/api_keys"):
            return b'[{"id": 1, "name": "tests", "read_only": false}]'
        projects = [{"id": f"p-{number}", "name": "shop"} for number in range(250)][first:][:100]
        body = {"projects": projects, "pagination": {"cursor": str(first + 100)}}
        return json.dumps(body).encode()

    misbehaving.respond = page_of_100
    html = dave.get(path).content.decode()
    assert "p-0" in html
    assert "p-249" in html


@pytest.mark.thorough
def test_an_endless_list_of_projects_is_read_in_part(
    dave: Person, misbehaving: Misbehaving
) -> None:
    numbers = itertools.count()

    def endless(path: str) -> bytes:
        projects = [{"id": f"p-{next(numbers)}", "name": "shop"} for _ in range(100)]
        return json.dumps({"projects": projects, "pagination": {"cursor": "more"}}).encode()

    misbehaving.respond = endless
    assert dave.get("/go").status_code == 200
    misbehaving.body = json.dumps(
        {"projects": [{"id": f"p-{n}"} for n in range(100)], "pagination": {"cursor": "more"}}
    ).encode()
    misbehaving.respond = None
    misbehaving.asked.clear()
    assert dave.get("/go").status_code == 200
    assert misbehaving.asked_for("/projects") == 2, "a page that is sent again ends the list"
