"""Roles and databases on the page of their branch."""

from typing import Any
from urllib.parse import quote

import pytest

from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.pages import Page
from tests.support.waiting import wait_for


@pytest.fixture
def url(shop: Shop) -> str:
    """The page of the branch that these tests use. It has no endpoint."""
    return f"{shop.url}/branches/{shop.dev_id}"


def roles(person: Person, shop: Shop) -> set[str]:
    path = f"/projects/{shop.id}/branches/{shop.dev_id}/roles"
    return {role["name"] for role in person.api.get(path)["roles"]}


def databases(person: Person, shop: Shop) -> dict[str, Any]:
    path = f"/projects/{shop.id}/branches/{shop.dev_id}/databases"
    return {one["name"]: one["owner_name"] for one in person.api.get(path)["databases"]}


def password_of(person: Person, shop: Shop, name: str) -> str:
    path = f"/projects/{shop.id}/branches/{shop.dev_id}/roles/{name}/reveal_password"
    return str(person.api.get(path)["password"])


def test_a_role_is_created_and_its_password_shown(alice: Person, shop: Shop, url: str) -> None:
    answer = alice.post(f"{url}/new-role", {"name": "reporting"})
    assert answer.status_code == 200
    page = Page(answer)
    assert password_of(alice, shop, "reporting") in page.text
    assert "New password of reporting" in page.text
    assert "reporting" in Page(alice.get(url)).row("Reveal password of reporting")


def test_a_refused_role_keeps_its_name_in_the_field(alice: Person, shop: Shop, url: str) -> None:
    before = roles(alice, shop)
    for name in ("neondb_owner", "pg_monitor", "a/b", "x" * 64):
        answer = alice.post(f"{url}/new-role", {"name": name})
        assert answer.status_code == 422, name
        assert Page(answer).fields["name"] == name
    assert roles(alice, shop) == before


def test_a_password_is_shown_on_demand_and_is_in_no_other_page(
    alice: Person, shop: Shop, url: str
) -> None:
    password = password_of(alice, shop, "neondb_owner")
    page_url = f"{url}/role/password?name=neondb_owner"
    for path in (url, f"{url}/live", page_url):
        assert password not in alice.get(path).content.decode(), path
    answer = alice.post(page_url)
    assert password in Page(answer).text
    assert answer["Cache-Control"] == "no-store"


@pytest.mark.thorough
def test_a_password_that_is_not_stored_is_not_shown(alice: Person, shop: Shop, url: str) -> None:
    shop.start()
    shop.sql("ALTER ROLE neondb_owner PASSWORD 'of-my-own-making'")
    main = f"{shop.url}/branches/{shop.main_id}"

    def refused() -> Any:
        return alice.post(f"{main}/role/password?name=neondb_owner")

    wait_for(lambda: refused().status_code == 422, "the role to have the password set by SQL")
    assert "was set by SQL" in Page(refused()).text
    # Set a stored password again for the next test.
    alice.post(f"{main}/role/new-password?name=neondb_owner")


@pytest.mark.thorough
def test_a_new_password_asks_for_confirmation(alice: Person, shop: Shop, url: str) -> None:
    before = password_of(alice, shop, "neondb_owner")
    page_url = f"{url}/role/new-password?name=neondb_owner"
    assert "The current password stops working" in Page(alice.get(page_url)).text
    assert password_of(alice, shop, "neondb_owner") == before
    answer = alice.post(page_url)
    after = password_of(alice, shop, "neondb_owner")
    assert after != before
    assert after in Page(answer).text


def test_a_role_that_owns_a_database_cannot_be_deleted(alice: Person, url: str) -> None:
    page_url = f"{url}/role/delete?name=neondb_owner"
    words = "neondb_owner owns the database neondb. Give the database another owner first."
    assert words in Page(alice.get(page_url)).text
    answer = alice.post(page_url)
    assert answer.status_code == 422
    assert "The role owns databases: neondb" in Page(answer).text


def test_a_role_is_deleted(alice: Person, shop: Shop, url: str) -> None:
    alice.post(f"{url}/new-role", {"name": "for a day"})
    page_url = f"{url}/role/delete?name={quote('for a day')}"
    page = Page(alice.get(page_url))
    assert "Delete role for a day" in page.text
    assert "On dev, this permanently deletes" in page.text
    assert alice.post(page_url)["Location"] == url
    assert "for a day" not in roles(alice, shop)


def test_a_database_is_created_changed_and_deleted(alice: Person, shop: Shop, url: str) -> None:
    alice.post(f"{url}/new-role", {"name": "accounting"})
    form = Page(alice.get(f"{url}/new-database"))
    assert {"accounting", "neondb_owner"} <= set(form.options["owner_name"])
    sent = {"name": "books", "owner_name": "accounting"}
    assert alice.post(f"{url}/new-database", sent)["Location"] == url
    assert databases(alice, shop)["books"] == "accounting"
    edit = f"{url}/database/edit?name=books"
    assert Page(alice.get(edit)).fields["owner_name"] == "accounting"
    changed = {"name": "ledger", "owner_name": "neondb_owner"}
    assert alice.post(edit, changed)["Location"] == url
    assert databases(alice, shop) == {"neondb": "neondb_owner", "ledger": "neondb_owner"}
    delete = f"{url}/database/delete?name=ledger"
    page = Page(alice.get(delete))
    assert "Delete database ledger" in page.text
    assert "with their data" in page.text
    assert alice.post(delete, {"typed": "books"}).status_code == 422
    assert alice.post(delete, {"typed": "ledger"})["Location"] == url
    assert databases(alice, shop) == {"neondb": "neondb_owner"}


def test_a_refused_database_shows_the_reason(alice: Person, shop: Shop, url: str) -> None:
    for name in ("neondb", "postgres"):
        sent = {"name": name, "owner_name": "neondb_owner"}
        answer = alice.post(f"{url}/new-database", sent)
        assert answer.status_code == 422
        assert Page(answer).fields["name"] == name
    answer = alice.post(f"{url}/new-database", {"name": "fresh", "owner_name": "nobody"})
    assert "Database owner not found" in Page(answer).text


def test_roles_and_databases_that_do_not_exist_have_no_forms(alice: Person, url: str) -> None:
    for path in ("database/edit", "database/delete"):
        assert alice.get(f"{url}/{path}?name=nothing").status_code == 404, path


@pytest.mark.thorough
@pytest.mark.parametrize("name", [".", "..", "", "a/b", "<b>", "naïve", "a b", "100%"])
def test_no_name_leads_to_another_address(
    dave: Person, misbehaving: Misbehaving, name: str
) -> None:
    misbehaving.refuse(404, "role not found")
    answer = dave.post(f"/projects/p/branches/b/role/delete?name={quote(name, safe='')}")
    assert answer.status_code == 422
    deletions = [one for one in misbehaving.asked if one.startswith("DELETE")]
    wanted = f"DELETE /api/v2/projects/p/branches/b/roles/{quote(name, safe='')}"
    assert deletions == ([wanted] if name not in (".", "..", "") else [])
