"""The curl examples of the forms about branches, roles, databases and snapshots do what the forms
do."""

import json
import subprocess
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from tests.console.conftest import Person, Shop
from tests.console.test_branch_page import wait_until_quiet
from tests.console.test_branches import branches
from tests.console.test_request_examples import commands
from tests.console.test_roles_and_databases import databases, password_of, roles
from tests.console.test_snapshots import snapshots

PAST, LATER = "2020-01-01T10:00", (datetime.now(UTC) + timedelta(days=3)).strftime("%Y-%m-%dT%H:%M")


@pytest.fixture
def url(shop: Shop) -> str:
    return f"{shop.url}/branches/{shop.dev_id}"


def run(person: Person, answer: Any, **replaced: str) -> Any:
    """Run the curl command of a form and return its answer. For a form that was refused, first
    replace the invalid values."""
    curl = commands(answer)["curl"]
    for wrong, right in replaced.items():
        assert wrong in curl
        curl = curl.replace(wrong, right)
    done = subprocess.run(
        ["bash", "-c", f"{curl} -s --fail-with-body"],
        env={"NEON_API_KEY": person.api.key, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (curl, done.stdout)
    return json.loads(done.stdout) if done.stdout else None


def test_roles(alice: Person, shop: Shop, url: str) -> None:
    refused = alice.post(f"{url}/new-role", {"name": "neondb_owner"})
    run(alice, refused, neondb_owner="ann")
    assert "ann" in roles(alice, shop)
    assert (
        f"neonctl roles create --project-id {shop.id} --branch {shop.dev_id}"
        in (commands(refused)["neonctl"])
    )
    shown = run(alice, alice.get(f"{url}/role/password?name=ann"))
    assert shown["password"] == password_of(alice, shop, "ann")
    renewed = run(alice, alice.get(f"{url}/role/new-password?name=ann"))
    assert renewed["role"]["password"] == password_of(alice, shop, "ann") != shown["password"]
    run(alice, alice.get(f"{url}/role/delete?name=ann"))
    assert "ann" not in roles(alice, shop)


def test_a_name_with_special_characters_of_shells_and_addresses(
    alice: Person, shop: Shop, url: str
) -> None:
    name = "ann's [name] {x} & 100%"
    alice.post(f"{url}/new-role", {"name": name})
    answer = alice.get(f"{url}/role/delete?name={quote(name, safe='')}")
    assert """roles delete 'ann'"'"'s [name] {x} & 100%'""" in commands(answer)["neonctl"]
    run(alice, answer)
    assert name not in roles(alice, shop)


@pytest.mark.parametrize("name", [".", "..", ""])
def test_a_name_that_would_change_the_path_has_no_example(
    carol: Person, still_shop: Shop, name: str
) -> None:
    """curl would delete the branch."""
    url = f"{still_shop.url}/branches/{still_shop.dev_id}"
    assert commands(carol.get(f"{url}/role/delete?name={name}")) == {}


def test_databases(alice: Person, shop: Shop, url: str) -> None:
    sent = {"name": "postgres", "owner_name": "neondb_owner"}
    refused = alice.post(f"{url}/new-database", sent)
    run(alice, refused, postgres="books")
    assert databases(alice, shop)["books"] == "neondb_owner"
    assert "--name postgres --owner-name neondb_owner" in commands(refused)["neonctl"]
    edit = f"{url}/database/edit?name=books"
    run(alice, alice.post(edit, sent), postgres="ledger")
    assert "ledger" in databases(alice, shop)
    run(alice, alice.get(f"{url}/database/delete?name=ledger"))
    assert "ledger" not in databases(alice, shop)


def test_creating_and_changing_a_branch(alice: Person, shop: Shop) -> None:
    sent = {"name": "dev", "parent_id": shop.main_id, "lifetime": "at", "until": LATER}
    refused = alice.post(f"{shop.url}/new-branch", {**sent, "schema_only": "on"})
    found = run(alice, refused, **{'"dev"': '"preview"'})["branch"]
    assert found["name"] == "preview"
    assert found["init_source"] == "schema-only"
    assert found["expires_at"] == f"{LATER}:00Z"
    neonctl = commands(refused)["neonctl"]
    assert neonctl.endswith(f"--expires-at {LATER}:00Z --no-compute --schema-only")
    wait_until_quiet(alice, f"{shop.url}/branches/{found['id']}")
    ticked = {"name": "dev", "with_endpoint": "on", "protected": "on"}
    refused = alice.post(f"{shop.url}/new-branch", ticked)
    found = run(alice, refused, **{'"dev"': '"kept"'})
    assert found["branch"]["protected"]
    assert len(found["endpoints"]) == 1
    assert commands(refused)["neonctl"].endswith("--name dev --protected")


@pytest.mark.thorough
def test_the_expiry_of_a_branch(alice: Person, shop: Shop, url: str) -> None:
    refused = alice.post(f"{url}/expiry", {"lifetime": "at", "until": PAST})
    run(alice, refused, **{PAST: LATER})
    assert branches(alice, shop)["dev"]["expires_at"] == f"{LATER}:00Z"
    again = commands(alice.get(f"{url}/expiry"))
    assert f"neonctl branches set-expiration {shop.dev_id}" in again["neonctl"]
    assert again["neonctl"].endswith(f" --expires-at {LATER}:00Z")
    run(alice, alice.get(f"{url}/expiry"), **{f'"{LATER}:00Z"': "null"})
    assert "expires_at" not in branches(alice, shop)["dev"]


@pytest.mark.thorough
def test_reset_and_restore(alice: Person, shop: Shop, url: str) -> None:
    reset = alice.get(f"{url}/reset")
    assert f"branches reset {shop.dev_id} --parent" in commands(reset)["neonctl"]
    assert run(alice, reset)["branch"]["id"] == shop.dev_id
    wait_until_quiet(alice, url)
    sent = {"source_id": "br-nowhere", "preserve_under_name": "was"}
    refused = alice.post(f"{url}/restore", sent)
    assert f"branches restore {shop.dev_id} br-nowhere" in commands(refused)["neonctl"]
    assert commands(refused)["neonctl"].endswith(" --preserve-under-name was")
    run(alice, refused, **{"br-nowhere": shop.main_id})
    wait_until_quiet(alice, url)
    assert "was" in branches(alice, shop)


@pytest.mark.thorough
def test_snapshots(alice: Person, shop: Shop, url: str) -> None:
    sent = {"name": "before", "lifetime": "at", "until": PAST}
    run(alice, alice.post(f"{url}/new-snapshot", sent), **{PAST: LATER})
    wait_until_quiet(alice, url)
    taken = snapshots(alice, shop)["before"]
    assert taken["expires_at"] == f"{LATER}:00Z"
    base = f"{shop.url}/snapshots/{taken['id']}"
    refused = alice.post(f"{base}/edit", {**sent, "name": "kept"})
    run(alice, refused, **{f'"{PAST}:00Z"': "null"})
    assert "expires_at" not in snapshots(alice, shop)["kept"]
    assert f"snapshots update {taken['id']}" in commands(refused)["neonctl"]
    assert commands(alice.get(f"{base}/edit"))["neonctl"].endswith(" --clear-expiration")
    restored = run(alice, alice.get(f"{base}/restore"))["branch"]
    wait_until_quiet(alice, f"{shop.url}/branches/{restored['id']}")
    in_place = alice.post(f"{base}/restore", {"target_id": shop.dev_id, "name": "no"})
    assert f"--target-branch {shop.dev_id} --name no --finalize" in commands(in_place)["neonctl"]
    run(alice, in_place, **{', "name": "no"': ""})
    wait_until_quiet(alice, url)
    run(alice, alice.get(f"{base}/delete"))
    assert snapshots(alice, shop) == {}
