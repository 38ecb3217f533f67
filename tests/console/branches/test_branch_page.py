"""The page of one branch, and the actions on it."""

import json
import re
from datetime import UTC, datetime, timedelta

import pytest

from tests.console.branches.test_branches import branches
from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.pages import Page
from tests.support.project import wanted
from tests.support.waiting import wait_for


def branch_url(shop: Shop, branch_id: str) -> str:
    return f"{shop.url}/branches/{branch_id}"


def wait_until_quiet(person: Person, url: str) -> Page:
    wait_for(lambda: not Page(person.get(url)).polls, "every operation has ended")
    return Page(person.get(url))


def test_it_works(carol: Person, still_shop: Shop) -> None:
    page = Page(carol.get(branch_url(still_shop, still_shop.main_id)))
    assert "main default" in page.text
    assert still_shop.endpoint_id in page.text
    assert f'href="{branch_url(still_shop, still_shop.dev_id)}"' in page.html
    assert "neondb_owner" in page.row("Reveal password")
    assert "neondb | neondb_owner" in page.row("Change database neondb")
    assert "No snapshots yet. A snapshot is" in page.text


def test_the_page_of_a_branch_without_an_endpoint(carol: Person, still_shop: Shop) -> None:
    page = Page(carol.get(branch_url(still_shop, still_shop.dev_id)))
    assert "No endpoint" in page.text
    assert f"new-endpoint?branch={still_shop.dev_id}" in page.html
    assert f'href="{branch_url(still_shop, still_shop.main_id)}">main</a>' in page.html


def test_another_users_branch_is_not_found(bob: Person, still_shop: Shop) -> None:
    assert bob.get(branch_url(still_shop, still_shop.main_id)).status_code == 404
    assert bob.get(branch_url(still_shop, "br-no-such-123456")).status_code == 404


def test_a_deleted_parent_is_not_a_link(dave: Person, misbehaving: Misbehaving) -> None:
    misbehaving.body = b"""{
        "project": {"id": "p"}, "operations": [], "endpoints": [], "events": [], "roles": [],
        "databases": [], "snapshots": [],
        "branches": [{"id": "br-2", "name": "dev", "parent_id": "br-gone"}]
    }"""
    page = Page(dave.get("/projects/p/branches/br-2"))
    assert "br-gone" in page.text
    assert "br-gone deleted" in page.text
    assert "branches/br-gone" not in page.html
    assert "No roles yet." in page.text
    assert "No databases yet." in page.text


def test_every_field_of_a_new_branch_can_be_chosen(alice: Person, shop: Shop) -> None:
    sent = {
        "name": "of the schema",
        "parent_id": shop.main_id,
        "schema_only": "on",
        "lifetime": "86400",
    }
    answer = alice.post(f"{shop.url}/new-branch", sent)
    assert answer.status_code == 302
    made = branches(alice, shop)["of the schema"]
    assert made["init_source"] == "schema-only"
    end = datetime.fromisoformat(made["expires_at"])
    assert timedelta(hours=23) < end - datetime.now(UTC) < timedelta(hours=25)
    page = wait_until_quiet(alice, answer["Location"])
    assert "schema only" in page.text
    alice.post(
        f"{shop.url}/new-branch",
        {"name": "safe", "parent_id": shop.main_id, "protected": "on", "lifetime": ""},
    )
    assert branches(alice, shop)["safe"]["protected"] is True


@pytest.mark.thorough
def test_a_branch_expires_at_a_typed_time(alice: Person, shop: Shop) -> None:
    url = f"{branch_url(shop, shop.dev_id)}/expiry"
    assert "At a specific time" in Page(alice.get(url)).text
    for until, words in (("", "Enter a time"), ("soon", "Enter a valid date")):
        answer = alice.post(url, {"lifetime": "at", "until": until})
        assert answer.status_code == 422
        assert words in Page(answer).text
    answer = alice.post(url, {"lifetime": "at", "until": "2999-01-31T12:00"})
    assert answer["Location"] == branch_url(shop, shop.dev_id)
    page = Page(alice.get(answer["Location"]))
    assert "2999-01-31 12:00:00 UTC" in page.text
    assert Page(alice.get(url)).fields["until"] == "2999-01-31T12:00"
    # In the reader's time zone, or in the one that the form has named.
    alice.browser.cookies["perch_zone"] = "Asia/Tokyo"
    form = Page(alice.get(url))
    assert form.fields["until"] == "2999-01-31T21:00"
    assert "Time (Asia/Tokyo)" in form.text
    alice.browser.cookies["perch_zone"] = "Europe/Berlin"
    alice.post(url, {"lifetime": "at", "until": "2998-12-01T10:00"})
    assert branches(alice, shop)["dev"]["expires_at"] == "2998-12-01T09:00:00Z"
    assert "expires at 2998-12-01 10:00 CET" in Page(alice.get(shop.url)).text
    alice.post(url, {"lifetime": "at", "until": "2998-12-01T10:00", "zone": form.fields["zone"]})
    assert branches(alice, shop)["dev"]["expires_at"] == "2998-12-01T01:00:00Z"
    # A typed time is ignored if another choice is selected.
    assert alice.post(url, {"lifetime": "", "until": "soon"}).status_code == 302
    assert "expires_at" not in branches(alice, shop)["dev"]


def test_a_branch_that_may_not_expire_is_refused_beside_the_field(
    carol: Person, still_shop: Shop
) -> None:
    url = f"{branch_url(still_shop, still_shop.main_id)}/expiry"
    page = Page(carol.post(url, {"lifetime": "3600"}))
    assert "The default branch cannot expire" in page.text
    assert page.fields["lifetime"] == "3600"
    page = Page(carol.post(url, {"lifetime": "at", "until": "2001-01-01T00:00"}))
    # By the field's label, not by its name in the API.
    assert "“Expires” must be in the future" in page.text


def test_protection(alice: Person, shop: Shop) -> None:
    url = branch_url(shop, shop.dev_id)
    assert alice.post(f"{url}/protection", {"to": "on"})["Location"] == url
    page = Page(alice.get(url))
    assert "dev protected" in page.text
    assert "Can't delete: protected" in page.text
    assert "This branch is protected." in Page(alice.get(f"{url}/reset")).text
    assert "This branch is protected." in Page(alice.get(f"{url}/restore")).text
    assert "dev is protected." in Page(alice.get(f"{url}/delete")).text
    alice.post(f"{url}/protection", {"to": "off"})
    assert branches(alice, shop)["dev"]["protected"] is False


@pytest.mark.thorough
def test_a_reset_of_a_parent_asks_for_a_name_for_the_old_data(alice: Person, shop: Shop) -> None:
    shop.new_branch_id(name="child", parent_id=shop.dev_id)
    url = branch_url(shop, shop.dev_id)
    asked = Page(alice.get(f"{url}/reset")).text
    assert "Required, because the branch has child branches (child)" in asked
    page = Page(alice.post(f"{url}/reset"))
    assert "The branch has children" in page.text
    assert "preserve_under_name" not in page.text
    assert alice.post(f"{url}/reset", {"preserve_under_name": "dev as it was"}).status_code == 302
    wait_until_quiet(alice, url)
    found = branches(alice, shop)
    assert found["child"]["parent_id"] == found["dev as it was"]["id"]


@pytest.mark.thorough
def test_restore_from_another_branch(alice: Person, shop: Shop) -> None:
    other_id = shop.new_branch_id(name="other", parent_id=shop.main_id)
    url = branch_url(shop, shop.dev_id)
    form = Page(alice.get(f"{url}/restore"))
    # Nothing is chosen until somebody chooses.
    assert form.options["source_id"][0] == form.fields.get("source_id", "") == ""
    assert set(form.options["source_id"][1:]) == {shop.main_id, other_id}
    sent = {"source_id": other_id, "preserve_under_name": "main"}
    answer = alice.post(f"{url}/restore", sent)
    assert answer.status_code == 422
    assert Page(answer).fields["source_id"] == other_id
    answer = alice.post(f"{url}/restore", {**sent, "preserve_under_name": "kept"})
    assert answer["Location"] == url
    wait_until_quiet(alice, url)
    found = branches(alice, shop)
    assert found["dev"]["parent_id"] == other_id
    assert "kept" in found


def test_a_root_branch_cannot_be_reset(carol: Person, still_shop: Shop) -> None:
    url = branch_url(still_shop, still_shop.main_id)
    page = Page(carol.get(f"{url}/reset"))
    assert "This branch has no parent" in page.text
    assert '<button type="submit" class="dangerous"' not in page.html
    assert "/reset" not in carol.get(url).content.decode()


@pytest.mark.thorough
def test_deleting_names_what_is_deleted_with_it(alice: Person, shop: Shop) -> None:
    made = alice.api.post(f"/projects/{shop.id}/endpoints", wanted(shop.dev_id))
    alice.api.finish(made)
    url = f"{branch_url(shop, shop.dev_id)}/delete"
    page = Page(alice.get(url))
    for words in ("Delete branch dev", made["endpoint"]["id"], "neondb", "neondb_owner"):
        assert words in page.text, words
    assert "closed at once" in page.text
    # The names are repeated when the typed id is wrong.
    assert made["endpoint"]["id"] in Page(alice.post(url, {"typed": "dex"})).text


@pytest.mark.thorough
def test_a_role_created_by_sql_is_marked(alice: Person, shop: Shop) -> None:
    shop.start()
    shop.sql("CREATE ROLE by_hand LOGIN")
    url = branch_url(shop, shop.main_id)

    def rows() -> list[str]:
        return [row for row in Page(alice.get(url)).rows() if "created by SQL" in row]

    wait_for(lambda: rows() != [], "the role is in the list")
    assert [row.split(" ")[0] for row in rows()] == ["by_hand"]


def test_a_form_on_a_page_of_its_own_names_what_it_is_within(
    carol: Person, still_shop: Shop
) -> None:
    project = carol.api.get(f"/projects/{still_shop.id}")["project"]["name"]
    url = branch_url(still_shop, still_shop.dev_id)
    crumbs = Page(carol.get(f"{url}/rename")).html.partition("Breadcrumb")[2].partition("</nav>")[0]
    assert re.findall(r">([^<]+)</a>", crumbs) == ["Projects", project, "dev"]
    assert f'href="{url}"' in crumbs


@pytest.mark.parametrize(("pending", "words"), [("ready", "creating…"), (None, "not created")])
def test_a_branch_whose_creation_was_cancelled_does_not_seem_to_be_created(
    dave: Person, misbehaving: Misbehaving, pending: str | None, words: str
) -> None:
    branch = {"id": "b", "name": "past", "current_state": "init", "pending_state": pending}
    empty = ("operations", "endpoints", "events", "roles", "databases", "snapshots")
    answers = {"project": {"id": "p"}, "branches": [branch], **{name: [] for name in empty}}
    misbehaving.body = json.dumps(answers).encode()
    for address in ("/projects/p/branches/b", "/projects/p/branches"):
        text = Page(dave.get(address)).text
        assert words in text
        assert ({"creating…", "not created"} - {words}).pop() not in text


def test_a_page_takes_one_round_of_calls(dave: Person, misbehaving: Misbehaving) -> None:
    misbehaving.body = b"""{
        "project": {"id": "p"}, "operations": [], "endpoints": [], "events": [], "roles": [],
        "databases": [], "snapshots": [], "branches": [{"id": "b"}]
    }"""
    dave.get("/projects/p/branches/b")
    asked = [one.partition("?")[0].rpartition("/api/v2/projects/p")[2] for one in misbehaving.asked]
    assert sorted(asked) == [
        "",
        "/branches",
        "/branches/b/databases",
        "/branches/b/history",
        "/branches/b/roles",
        "/endpoints",
        "/events",
        "/operations",
        "/snapshots",
    ]
