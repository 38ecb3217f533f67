"""Branches: their tree as a list and as a picture, and the forms that create or change them."""

from typing import Any

import pytest

from tests.console.conftest import Person, Shop
from tests.console.pages import Page
from tests.support.waiting import wait_for


def branches(person: Person, shop: Shop) -> dict[str, Any]:
    found = person.api.get(f"/projects/{shop.id}/branches")["branches"]
    return {branch["name"]: branch for branch in found}


def wait_until_quiet(person: Person, shop: Shop) -> None:
    wait_for(
        lambda: not Page(person.get(f"{shop.url}/branches")).polls, "every operation has ended"
    )


def test_it_works(alice: Person, shop: Shop) -> None:
    form = Page(alice.get(f"{shop.url}/new-branch"))
    assert form.fields["parent_id"] == shop.main_id
    assert form.fields["with_endpoint"] == "on"
    sent = {"name": "preview", "parent_id": shop.dev_id, "with_endpoint": "on"}
    answer = alice.post(f"{shop.url}/new-branch", sent)
    made = branches(alice, shop)["preview"]
    assert answer["Location"] == f"{shop.url}/branches/{made['id']}"
    assert made["parent_id"] == shop.dev_id
    wait_until_quiet(alice, shop)
    rows = alice.get(f"{shop.url}/branches").context["branches"]
    assert [bool(row.endpoint) for row in rows if row.branch.name == "preview"] == [True]


def test_the_list(carol: Person, still_shop: Shop) -> None:
    page = Page(carol.get(f"{still_shop.url}/branches"))
    branch = page.row(still_shop.main_id)
    assert "default" in branch
    assert still_shop.endpoint_id in branch
    assert "Create endpoint" in page.row(still_shop.dev_id)
    assert not page.polls


def test_a_tree_is_drawn_with_children_below_their_parent(alice: Person, shop: Shop) -> None:
    for name, parent in (("z-child", shop.dev_id), ("e-sibling", shop.main_id)):
        body = {"branch": {"name": name, "parent_id": parent}}
        alice.api.finish(alice.api.post(f"/projects/{shop.id}/branches", body))
    rows = alice.get(f"{shop.url}/branches").context["branches"]
    drawn = [(row.branch.name, len(row.goes_on)) for row in rows]
    assert drawn == [("main", 0), ("dev", 1), ("z-child", 2), ("e-sibling", 1)]


@pytest.mark.thorough
def test_a_refused_branch_shows_the_reason_and_keeps_the_form(
    carol: Person, still_shop: Shop
) -> None:
    for fields in (
        {"name": "dev"},
        {"name": "x" * 300},
        {"name": "ok", "parent_id": "br-no-such-123456"},
    ):
        sent = {"parent_id": still_shop.main_id, **fields}
        answer = carol.post(f"{still_shop.url}/new-branch", sent)
        assert answer.status_code == 422, fields
        page = Page(answer)
        assert 'role="alert"' in page.html
        assert page.fields["name"] == sent["name"]
        assert page.fields["parent_id"] == sent["parent_id"]
        # The part of the form that was open stays open.
        assert page.fields["with_endpoint"] == ""


@pytest.mark.thorough
def test_renaming(alice: Person, shop: Shop) -> None:
    url = f"{shop.url}/branches/{shop.dev_id}/rename"
    assert Page(alice.get(url)).fields["name"] == "dev"
    sent = {"name": "staging", "next": f"{shop.url}/branches"}
    assert alice.post(url, sent)["Location"] == f"{shop.url}/branches"
    assert branches(alice, shop)["staging"]["id"] == shop.dev_id
    answer = alice.post(url, {"name": "main"})
    assert answer.status_code == 422
    assert Page(answer).fields["name"] == "main"


@pytest.mark.thorough
def test_another_branch_becomes_the_default(alice: Person, shop: Shop) -> None:
    asked = Page(alice.get(f"{shop.url}/branches/{shop.dev_id}/set-default"))
    assert "dev becomes the project's default branch instead of main" in asked.text
    answer = alice.post(f"{shop.url}/branches/{shop.dev_id}/set-default")
    assert answer["Location"] == f"{shop.url}/branches/{shop.dev_id}"
    assert branches(alice, shop)["dev"]["default"] is True
    assert "default" in Page(alice.get(f"{shop.url}/branches")).row(shop.dev_id)


@pytest.mark.thorough
@pytest.mark.parametrize("by", ["name", "id"])
def test_deleting_requires_the_typed_name_or_id(alice: Person, shop: Shop, by: str) -> None:
    url = f"{shop.url}/branches/{shop.dev_id}/delete"
    refused = Page(alice.post(url, {"typed": "main"}))
    assert f"This does not match dev or {shop.dev_id}" in refused.text
    assert "Type its name or id to confirm" in refused.text
    assert (
        alice.post(url, {"typed": "dev" if by == "name" else shop.dev_id})["Location"]
        == f"{shop.url}/branches"
    )
    wait_for(lambda: "dev" not in branches(alice, shop), "the branch is gone")


@pytest.mark.thorough
def test_the_default_branch_and_a_parent_cannot_be_deleted(alice: Person, shop: Shop) -> None:
    alice.api.finish(
        alice.api.post(
            f"/projects/{shop.id}/branches",
            {"branch": {"name": "child", "parent_id": shop.dev_id}},
        )
    )
    page = Page(alice.get(f"{shop.url}/branches"))
    assert "Can't delete: default branch" in page.row(shop.main_id)
    assert "Can't delete: has child branches" in page.row(shop.dev_id)
    for branch_id in (shop.main_id, shop.dev_id):
        url = f"{shop.url}/branches/{branch_id}/delete"
        answer = alice.post(url, {"typed": branch_id})
        assert answer.status_code == 422
        assert Page(answer).fields["typed"] == branch_id
    assert set(branches(alice, shop)) == {"main", "dev", "child"}


def test_another_users_branch_is_not_found(carol: Person, bob: Person, still_shop: Shop) -> None:
    url = f"{still_shop.url}/branches/{still_shop.dev_id}"
    assert bob.get(f"{url}/rename").status_code == 404
    assert bob.get(f"{url}/delete").status_code == 404
    bob.post(f"{url}/set-default")
    assert branches(carol, still_shop)["main"]["default"] is True
