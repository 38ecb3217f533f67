"""A project's page, and creating, renaming and deleting one."""

import json
import re
from typing import Any, cast

import pytest
from django import forms

from console.api.resources.projects import Region
from console.forms.api_requests import body_of
from console.projects.views import ProjectForm
from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.pages import Page
from tests.support.waiting import wait_for


def test_it_works(carol: Person, still_shop: Shop) -> None:
    page = Page(carol.get(still_shop.url))
    row = page.row(still_shop.endpoint_id)
    for words in ("Active", "main", "0.25 to 1 CU", "Connect…"):
        assert words in row
    assert not page.polls


def test_each_tab_is_a_page_of_its_own(carol: Person, still_shop: Shop) -> None:
    page = Page(carol.get(still_shop.url))
    tabs = re.findall(r'<a id="tab-\w+"[^>]* href="([^"]+)"', page.html)
    assert [tab.removeprefix(still_shop.url) for tab in tabs] == [
        "",
        "/branches",
        "/operations",
        "/events",
        "/query",
        "/tables",
        "/settings",
    ]
    for tab in tabs:
        html = carol.get(tab).content.decode()
        assert f'href="{tab}" aria-current="page"' in html
        assert html.count("<h1") == 1


def test_each_endpoint_shows_host_type_region_and_state(carol: Person, still_shop: Shop) -> None:
    # Specification, section 1.
    row = Page(carol.get(still_shop.url)).row(f"{still_shop.endpoint_id}.localhost")
    for words in ("Read-write · local", "Active"):
        assert words in row


def test_an_endpoint_shows_its_pending_state(alice: Person, shop: Shop) -> None:
    created = alice.api.new_project(name="fresh", wait=False)
    page = Page(alice.get(f"/projects/{created['project']['id']}"))
    assert page.polls
    assert "in progress" in page.text
    endpoint = page.row(created["endpoints"][0]["id"])
    assert (
        "Idle starting…" in endpoint or "Idle creating branch…" in endpoint or "Active" in endpoint
    )


def test_creating_leads_to_the_new_projects_page(alice: Person) -> None:
    answer = alice.post("/new-project", {"name": "shop", "region_id": "local"})
    assert answer.status_code == 302
    page = Page(alice.get(answer["Location"]))
    assert "Started creating project shop" in page.text


@pytest.mark.parametrize("name", ["twice", ""])
def test_a_form_that_is_sent_twice_makes_one_project(alice: Person, name: str) -> None:
    sent = Page(alice.get("/new-project")).fields | {"name": name}
    first, second = (alice.post("/new-project", sent)["Location"] for _ in range(2))
    assert first == second
    # After going back, another name is another project.
    assert alice.post("/new-project", sent | {"name": "other"})["Location"] != first
    assert len(alice.api.get("/projects")["projects"]) == 2


def test_a_refused_form_is_not_refused_for_ever(alice: Person) -> None:
    sent = Page(alice.get("/new-project")).fields | {"region_id": "nowhere"}
    refused = Page(alice.post("/new-project", sent))
    assert refused.fields["once"] not in ("", sent["once"])


@pytest.mark.parametrize(
    ("name", "region"), [("x" * 300, "local"), ("shop", "aws-nowhere-1"), ("a\0b", "local")]
)
def test_a_refusal_by_the_api_is_shown_beside_the_form(
    alice: Person, name: str, region: str
) -> None:
    answer = alice.post("/new-project", {"name": name, "region_id": region})
    assert answer.status_code == 422
    page = Page(answer)
    assert page.fields["name"] == name
    assert page.fields["region_id"] == region
    assert 'role="alert"' in page.html


@pytest.mark.thorough
def test_deleting_requires_the_typed_id(alice: Person, shop: Shop) -> None:
    for typed in ("", "Shop", shop.id.upper()):
        answer = alice.post(f"{shop.url}/delete", {"typed": typed})
        assert answer.status_code == 422
        assert f"This does not match shop or {shop.id}" in Page(answer).text
        assert Page(answer).fields["typed"] == typed
    answer = alice.post(f"{shop.url}/delete", {"typed": f" {shop.id} "})
    assert answer["Location"] == "/"
    assert "Project shop is deleted." in Page(alice.get("/")).text
    wait_for(lambda: alice.get(shop.url).status_code == 404, "the project is gone")
    assert shop.id not in Page(alice.get("/")).html
    # This service keeps no deleted projects.
    assert "No deleted projects" in Page(alice.get("/deleted-projects")).text


def test_a_project_with_a_protected_branch_is_not_deleted(alice: Person, shop: Shop) -> None:
    path = f"{shop.path}/branches/{shop.main_id}"
    shop.client.patch(path, {"branch": {"protected": True}})
    page = Page(alice.get(f"{shop.url}/delete"))
    assert "Branches are protected: main. Turn off protection first." in page.text
    assert "typed" not in page.fields
    answer = alice.post(f"{shop.url}/delete", {"typed": shop.id})
    assert answer.status_code == 422
    assert "protected" in Page(answer).text
    shop.client.patch(path, {"branch": {"protected": False}})
    assert "protected" not in Page(alice.get(f"{shop.url}/delete")).text


def test_a_project_is_confirmed_by_its_name_unless_another_has_it(
    dave: Person, misbehaving: Misbehaving
) -> None:
    projects = [{"id": "p", "name": "shop"}, {"id": "q", "name": "shop"}]

    def tell(*known: dict[str, str]) -> None:
        misbehaving.body = json.dumps({"project": projects[0], "projects": known}).encode()

    tell(*projects)
    assert "Type its id to confirm" in Page(dave.get("/projects/p/delete")).text
    assert dave.post("/projects/p/delete", {"typed": "shop"}).status_code == 422
    tell(projects[0])
    page = Page(dave.get("/projects/p/delete"))
    assert "Type its name or id to confirm" in page.text
    assert 'data-expected="p" data-name="shop"' in page.html
    assert not misbehaving.asked_for("DELETE")
    assert dave.post("/projects/p/delete", {"typed": "shop "})["Location"] == "/"
    assert misbehaving.asked_for("DELETE /api/v2/projects/p")


def test_a_deleted_project_is_recovered(dave: Person, misbehaving: Misbehaving) -> None:
    kept = {"id": "p", "name": "shop", "recoverable_until": "2027-01-31T10:20:00Z"}
    misbehaving.body = json.dumps({"project": kept, "projects": [kept]}).encode()
    dave.post("/projects/p/delete", {"typed": "p"})
    page = Page(dave.get("/deleted-projects"))
    assert "Project shop is deleted. Until 2027-01-31 10:20 UTC you can recover it" in page.text
    assert misbehaving.asked_for("GET /api/v2/projects?recoverable=true")
    assert "Recover" in page.row("shop")
    assert dave.post("/projects/p/recover")["Location"] == "/projects/p"
    assert misbehaving.asked_for("POST /api/v2/projects/p/recover")


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"recovery_period_seconds": 172_800}, "You can recover the project for 2 days"),
        ({"recovery_period_seconds": 0}, "This permanently deletes:"),
        ({}, "This permanently deletes:"),
    ],
)
def test_the_form_says_for_how_long_a_deleted_project_can_be_recovered(
    dave: Person, misbehaving: Misbehaving, told: dict[str, int], words: str
) -> None:
    parts: dict[str, list[Any]] = {"branches": [], "endpoints": [], "snapshots": []}
    misbehaving.body = json.dumps({"project": {"id": "p", **told}, **parts}).encode()
    assert words in Page(dave.get("/projects/p/delete")).text


def test_the_list_of_deleted_projects_says_if_there_are_more(
    dave: Person, misbehaving: Misbehaving
) -> None:
    for count, is_said in ((399, False), (400, True)):
        told = {
            "projects": [{"id": f"p{n}", "name": "shop"} for n in range(count)],
            "pagination": {"cursor": f"p{count}"} if is_said else {},
        }
        misbehaving.body = json.dumps(told).encode()
        words = "Only the 400 that were created last are shown."
        assert (words in Page(dave.get("/deleted-projects")).text) == is_said


def test_an_empty_list_leads_to_the_deleted_projects(bob: Person) -> None:
    page = Page(bob.get("/"))
    assert "No projects yet" in page.text
    assert "Recover a deleted project" in page.text


def test_another_users_project_is_not_found(carol: Person, bob: Person, still_shop: Shop) -> None:
    for path in (
        "",
        "/settings",
        "/branches",
        "/rename",
        "/delete",
        "/new-branch",
        "/new-endpoint",
        "/operations",
    ):
        answer = bob.get(still_shop.url + path)
        assert answer.status_code == 404, path
        assert "Not found" in Page(answer).text
    bob.post(f"{still_shop.url}/delete", {"typed": still_shop.id})
    assert carol.get(still_shop.url).status_code == 200


def test_an_unknown_address_has_a_404_page(alice: Person) -> None:
    answer = alice.get("/nothing/here")
    assert answer.status_code == 404
    assert "Page not found" in Page(answer).text


def test_endpoints_are_searched_and_the_search_survives_a_renewal(
    carol: Person, still_shop: Shop
) -> None:
    # Other tests may have taken longer than its time of idleness.
    still_shop.start()
    page = Page(carol.get(f"{still_shop.url}?search=main&sort=branch"))
    assert still_shop.endpoint_id in page.row("Active")
    assert page.fields["search"] == "main"
    assert f'data-live="{still_shop.url}/live?search=main&amp;sort=branch"' in page.html
    none = Page(carol.get(f"{still_shop.url}?search=elsewhere"))
    assert "No endpoint matches “elsewhere”" in none.text
    assert "0 of 1" in none.text


@pytest.mark.thorough
def test_the_switcher_lists_other_projects(alice: Person, shop: Shop) -> None:
    alice.api.new_project(name="blog", wait=False)
    page = Page(alice.get(f"{shop.url}/switch"))
    assert "blog" in page.text
    assert f'href="{shop.url}" aria-current="page"' in page.html
    found = Page(alice.get(f"{shop.url}/switch?search=blo"))
    assert f'<a href="{shop.url}" aria-current' not in found.html


@pytest.mark.thorough
def test_a_new_projects_page_shows_how_to_connect(alice: Person) -> None:
    answer = alice.post("/new-project", {"name": "fresh", "region_id": ""})
    page = Page(alice.get(answer["Location"]))
    (address,) = re.findall(r'class="connection"[^>]* hx-get="([^"]+)"', page.html)
    text = alice.htmx_get(address, target="").content.decode()
    assert "postgresql://neondb_owner:********@" in text


def test_the_form_offers_the_versions_of_postgres_if_there_are_several(alice: Person) -> None:
    assert "pg_version" not in Page(alice.get("/new-project")).options

    def offered(*regions: list[int]) -> list[Any] | None:
        form = ProjectForm()
        form.offer_regions(Region(str(one), "", False, one) for one in regions)
        if "pg_version" not in form.fields:
            return None
        return [value for value, _ in cast(forms.Select, form.fields["pg_version"].widget).choices]

    assert offered([15, 18], [17, 18]) == ["", 18, 17, 15]
    assert offered([18], []) is None
    form = ProjectForm({"name": "shop", "pg_version": "15"})
    assert form.is_valid()
    assert body_of(form, "project_create")["project"] == {"name": "shop", "pg_version": 15}


def test_the_palette_ranks_what_is_called_exactly_so_first(
    dave: Person, misbehaving: Misbehaving
) -> None:
    answers = {
        "/projects/p": {"project": {"id": "p", "name": "shop"}},
        "/projects/p/endpoints": {"endpoints": [{"id": "ep-a", "branch_id": "br-main"}]},
        "/projects/p/branches": {
            "branches": [
                {"id": "br-other", "name": "remain"},
                {"id": "br-mains", "name": "mains"},
                {"id": "br-main", "name": "main"},
            ]
        },
    }

    def respond(asked: str) -> bytes:
        path = asked.partition("?")[0].split("/api/v2")[-1]
        return json.dumps(answers.get(path, {"projects": []})).encode()

    misbehaving.respond = respond
    html = dave.get("/go?project=p&q=main").content.decode()
    labels = re.findall(r'<span class="name">([^<]*)', html)
    assert labels == ["main", "mains", "ep-a", "remain"]
