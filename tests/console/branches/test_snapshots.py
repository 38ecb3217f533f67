"""Snapshots: on the page of their branch, and on the list of branches once their branch is
deleted."""

from typing import Any

import pytest

from tests.console.branches.test_branch_page import branch_url, wait_until_quiet
from tests.console.branches.test_branches import branches
from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.pages import Page
from tests.support.waiting import wait_for


def snapshots(person: Person, shop: Shop) -> dict[str, Any]:
    found = person.api.get(f"/projects/{shop.id}/snapshots")["snapshots"]
    return {snapshot["name"]: snapshot for snapshot in found}


def take(person: Person, shop: Shop, name: str) -> str:
    url = branch_url(shop, shop.dev_id)
    answer = person.post(f"{url}/new-snapshot", {"name": name, "lifetime": "604800"})
    assert answer["Location"] == url
    wait_until_quiet(person, url)
    return str(snapshots(person, shop)[name]["id"])


def forget(person: Person, shop: Shop, snapshot_id: str) -> None:
    person.post(f"{shop.url}/snapshots/{snapshot_id}/delete")


def test_it_works(alice: Person, shop: Shop) -> None:
    snapshot_id = take(alice, shop, "before")
    assert snapshots(alice, shop)["before"]["expires_at"]
    page = Page(alice.get(branch_url(shop, shop.dev_id)))
    assert "before" in page.row(snapshot_id)
    assert "being taken" not in page.text
    # The page of another branch does not show it.
    assert snapshot_id not in Page(alice.get(branch_url(shop, shop.main_id))).text
    url = f"{shop.url}/snapshots/{snapshot_id}/delete"
    page = Page(alice.get(url))
    assert "Delete snapshot before" in page.text
    assert "Copy of the branch" in page.text
    assert alice.post(url)["Location"] == f"{shop.url}/branches"
    assert snapshots(alice, shop) == {}


def test_a_snapshots_name_and_expiry_are_changed(alice: Person, shop: Shop) -> None:
    snapshot_id = take(alice, shop, "before")
    url = f"{shop.url}/snapshots/{snapshot_id}/edit"
    fields = Page(alice.get(url)).fields
    assert (fields["name"], fields["lifetime"]) == ("before", "at")
    # A new name alone leaves the expiry as it is, to the second.
    ends = "2099-01-31T12:30:45Z"
    alice.api.patch(f"{shop.path}/snapshots/{snapshot_id}", {"snapshot": {"expires_at": ends}})
    alice.post(url, {**Page(alice.get(url)).fields, "name": "renamed"})
    assert snapshots(alice, shop)["renamed"]["expires_at"] == ends
    back = branch_url(shop, shop.dev_id)
    sent = {"name": "kept", "lifetime": "", "until": fields["until"], "next": back}
    assert alice.post(url, sent)["Location"] == back
    assert "Snapshot kept does not expire" in Page(alice.get(back)).text
    assert "expires_at" not in snapshots(alice, shop)["kept"]
    answer = alice.post(url, {"name": "kept", "lifetime": "at", "until": "2020-01-01T10:00"})
    assert answer.status_code == 422
    assert Page(answer).fields["until"] == "2020-01-01T10:00"
    assert alice.get(url.replace(snapshot_id, "snap-nothing")).status_code == 404
    forget(alice, shop, snapshot_id)


def test_the_time_of_a_snapshot_is_in_utc_whatever_the_server_writes(
    dave: Person, misbehaving: Misbehaving
) -> None:
    misbehaving.body = b"""{"snapshots": [
        {"id": "s", "name": "before", "timestamp": "2026-03-06T08:00:00+09:00"}
    ]}"""
    page = Page(dave.get("/projects/p/snapshots/s/delete"))
    assert "as of 2026-03-05 23:00:00 UTC" in page.text


@pytest.mark.thorough
def test_restored_as_a_new_branch(alice: Person, shop: Shop) -> None:
    snapshot_id = take(alice, shop, "before")
    url = f"{shop.url}/snapshots/{snapshot_id}/restore"
    form = Page(alice.get(url))
    # The snapshot's own branch is the first choice to replace.
    assert form.options["target_id"] == ["", shop.dev_id, shop.main_id]
    answer = alice.post(url, {"target_id": shop.dev_id, "name": "again"})
    assert "Only a new branch can have a name" in Page(answer).text
    assert (
        "There is a branch called “dev” already."
        in Page(alice.post(url, {"target_id": "", "name": "dev"})).text
    )
    answer = alice.post(url, {"target_id": "", "name": "again"})
    assert answer["Location"] == branch_url(shop, branches(alice, shop)["again"]["id"])
    wait_until_quiet(alice, answer["Location"])
    forget(alice, shop, snapshot_id)


@pytest.mark.thorough
def test_restored_in_place_of_a_branchs_data(alice: Person, shop: Shop) -> None:
    snapshot_id = take(alice, shop, "before")
    url = f"{shop.url}/snapshots/{snapshot_id}/restore"
    answer = alice.post(url, {"target_id": shop.dev_id, "name": ""})
    assert answer["Location"] == branch_url(shop, shop.dev_id)
    wait_until_quiet(alice, answer["Location"])
    assert any(name.startswith("dev_old_") for name in branches(alice, shop))
    forget(alice, shop, snapshot_id)


@pytest.mark.thorough
def test_a_snapshot_outlives_its_branch(alice: Person, shop: Shop) -> None:
    snapshot_id = take(alice, shop, "keepsake")
    page = Page(alice.get(f"{branch_url(shop, shop.dev_id)}/delete"))
    assert "Snapshots kept: keepsake" in page.text
    alice.post(f"{branch_url(shop, shop.dev_id)}/delete", {"typed": shop.dev_id})
    wait_for(lambda: "dev" not in branches(alice, shop), "the branch is gone")
    page = Page(alice.get(f"{shop.url}/branches"))
    assert "Snapshots of deleted branches" in page.text
    assert "keepsake" in page.row(snapshot_id)
    forget(alice, shop, snapshot_id)


def test_the_list_of_operations_names_the_snapshot(alice: Person, shop: Shop) -> None:
    snapshot_id = take(alice, shop, "before-the-move")
    assert "Create snapshot before-the-move" in Page(alice.get(f"{shop.url}/operations")).text
    forget(alice, shop, snapshot_id)
