"""Neon's command-line client, unmodified: branches, and what is created from them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.clients.conftest import Cli
from tests.support.place import Place
from tests.support.waiting import wait_for


@pytest.fixture
def dev(neonctl: Cli, shop: Place) -> Any:
    """A branch with a compute, created by the client and deleted at the end."""
    made = neonctl("branches", "create", "--name", "dev")
    settle(shop)
    yield made
    shop.client.call("DELETE", shop.branch_path(made["branch"]["id"]))
    settle(shop)


def settle(shop: Place) -> None:
    """Wait until no operation is in progress."""
    unfinished = {"scheduling", "running", "cancelling"}
    wait_for(
        lambda: not any(one["status"] in unfinished for one in shop.operations()), "the operations"
    )


def test_a_branch_is_created_with_its_compute_and_its_connection(dev: Any, shop: Place) -> None:
    assert dev["branch"]["name"] == "dev"
    assert dev["branch"]["parent_id"] == shop.branch_id
    assert dev["endpoints"][0]["type"] == "read_write"
    assert dev["connection_uris"][0]["connection_uri"].startswith("postgresql://")


@pytest.mark.thorough
def test_branches_are_listed_with_their_main_fields(neonctl: Cli, dev: Any) -> None:
    assert {one["name"] for one in neonctl("branches", "list")} == {"main", "dev"}
    assert "dev" in neonctl.text("branches", "list")
    assert neonctl("branches", "get", "dev")["id"] == dev["branch"]["id"]


@pytest.mark.thorough
def test_a_branch_is_renamed_and_made_the_default(neonctl: Cli, dev: Any) -> None:
    assert neonctl("branches", "rename", "dev", "trial")["name"] == "trial"
    assert neonctl("branches", "set-default", "trial")["default"] is True
    assert neonctl("branches", "set-default", "main")["default"] is True


@pytest.mark.thorough
def test_a_branch_has_the_requested_expiry(neonctl: Cli, dev: Any) -> None:
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(days=2)
    told = soon.isoformat().replace("+00:00", "Z")
    assert neonctl("branches", "set-expiration", "dev", "--expires-at", told)["expires_at"] == told
    assert neonctl("branches", "get", "dev")["expires_at"] == told
    assert "expires_at" not in neonctl("branches", "set-expiration", "dev")
    made = neonctl("branches", "create", "--name", "brief", "--expires-at", told)
    assert made["branch"]["expires_at"] == told
    neonctl("branches", "delete", "brief")


@pytest.mark.thorough
def test_a_schema_only_branch_has_no_rows(neonctl: Cli, shop: Place) -> None:
    with shop.connect() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS secrets (number int)")
        connection.execute("INSERT INTO secrets VALUES (42)")
    made = neonctl("branches", "create", "--name", "bare", "--schema-only")
    settle(shop)
    endpoint_id = made["endpoints"][0]["id"]
    with shop.connect(host=f"{endpoint_id}.localhost") as connection:
        assert connection.execute("SELECT count(*) FROM secrets").fetchone() == (0,)
    neonctl("branches", "delete", "bare")


@pytest.mark.thorough
def test_a_compute_is_added_to_a_branch(neonctl: Cli, shop: Place) -> None:
    neonctl("branches", "create", "--name", "dry", "--no-compute")
    settle(shop)
    added = neonctl("branches", "add-compute", "dry", "--type", "read_write", "--cu", "0.5-1")
    assert added["autoscaling_limit_min_cu"] == 0.5
    refused = neonctl.refusal("branches", "add-compute", "dry", "--type", "read_only")
    assert "a branch has one endpoint, for reading and writing" in refused
    settle(shop)
    neonctl("branches", "delete", "dry")


@pytest.mark.thorough
def test_a_branch_is_reset_from_its_parent(neonctl: Cli, shop: Place, dev: Any) -> None:
    host = f"{dev['endpoints'][0]['id']}.localhost"
    with shop.connect(host=host) as connection:
        connection.execute("CREATE TABLE only_here (id int)")
    reset = neonctl("branches", "reset", "dev", "--parent")
    settle(shop)
    assert reset["id"] == dev["branch"]["id"]
    assert neonctl("branches", "get", "dev")["last_reset_at"]
    with shop.connect(host=host) as connection:
        assert connection.execute("SELECT to_regclass('only_here')").fetchone() == (None,)


@pytest.mark.thorough
def test_a_branch_is_restored_and_its_previous_data_kept(
    neonctl: Cli, shop: Place, dev: Any
) -> None:
    host = f"{dev['endpoints'][0]['id']}.localhost"
    with shop.connect(host=host) as connection:
        connection.execute("CREATE TABLE only_here (id int)")
    neonctl.text("branches", "restore", "dev", "main", "--preserve-under-name", "dev-before")
    settle(shop)
    kept = neonctl("branches", "get", "dev-before")
    with shop.connect(host=host) as connection:
        assert connection.execute("SELECT to_regclass('only_here')").fetchone() == (None,)
    added = shop.create_endpoint(kept["id"])["endpoint"]
    with shop.connect(host=added["host"]) as connection:
        assert connection.execute("SELECT to_regclass('only_here')").fetchone() == ("only_here",)
    refused = neonctl.refusal("branches", "restore", "dev", "main@2026-01-01T00:00:00Z")
    assert "history" in refused
    for name in ("dev", "dev-before"):
        neonctl.run("branches", "delete", name)
        settle(shop)


@pytest.mark.thorough
def test_schemas_are_compared(neonctl: Cli, shop: Place, dev: Any) -> None:
    host = f"{dev['endpoints'][0]['id']}.localhost"
    # For equal schemas it prints the names of the branches and no difference.
    equal = neonctl.text("branches", "schema-diff", "main", "dev")
    assert "Database: neondb" in equal
    assert "@@" not in equal
    with shop.connect(host=host) as connection:
        connection.execute("CREATE TABLE only_here (id int)")
    assert "+CREATE TABLE public.only_here (" in neonctl.text(
        "branches", "schema-diff", "main", "dev", "--database", shop.database
    )
    (told,) = neonctl("diff", "main", "--branch", "dev")
    assert told["has_changes"] is True
    assert "only_here" in told["diff"]


@pytest.mark.thorough
def test_a_snapshot_is_made_listed_restored_and_deleted(
    neonctl: Cli, shop: Place, dev: Any
) -> None:
    host = f"{dev['endpoints'][0]['id']}.localhost"
    with shop.connect(host=host) as connection:
        connection.execute("CREATE TABLE kept (id int)")
    made = neonctl("snapshots", "create", "--branch", "dev", "--name", "before")
    settle(shop)
    assert [one["name"] for one in neonctl("snapshots", "list")] == ["before"]
    assert neonctl("snapshots", "get", "before")["id"] == made["id"]
    assert neonctl("snapshots", "update", "before", "--name", "first")["name"] == "first"
    neonctl.text("snapshots", "restore", "first", "--name", "again")
    settle(shop)
    assert {"again"} <= {one["name"] for one in neonctl("branches", "list")}
    neonctl("branches", "delete", "again")
    settle(shop)
    neonctl.text("snapshots", "delete", "first")
    settle(shop)
    assert neonctl("snapshots", "list") == []


@pytest.mark.thorough
def test_a_branch_that_does_not_exist_is_named(neonctl: Cli) -> None:
    assert "nowhere" in neonctl.refusal("branches", "get", "nowhere")
