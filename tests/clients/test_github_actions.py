"""Makes the calls of Neon's GitHub actions that give each pull request a database.

create-branch-action and schema-diff-action call `@neondatabase/api-client`; reset-branch-action and
delete-branch-action run neonctl 2.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.clients import nodejs
from tests.clients.conftest import Cli
from tests.support.place import Place
from tests.support.waiting import wait_for


def create_branch(shop: Place, name: str, **inputs: str) -> Any:
    ran = nodejs.script(
        "create_branch_action.mjs",
        API_KEY=shop.client.key,
        API_URL=shop.client.api_url,
        PROJECT_ID=shop.id,
        BRANCH=name,
        **inputs,
    )
    assert ran.status == 0, ran.told
    return json.loads(ran.output)


def names(shop: Place) -> set[str]:
    return {one["name"] for one in shop.client.get(shop.path + "/branches")["branches"]}


@pytest.fixture
def neonctl_2(make_cli: Callable[..., Cli], shop: Place) -> Cli:
    return make_cli(shop.client, "neonctl-2")


@pytest.mark.thorough
def test_a_pull_request_from_its_first_push_to_its_end(
    node: None, shop: Place, neonctl_2: Cli
) -> None:
    expires = (datetime.now(UTC) + timedelta(days=14)).strftime("%Y-%m-%dT%H:%M:%SZ")
    first = create_branch(shop, "preview/pr-7", EXPIRES_AT=expires)
    assert first["created"] is True
    assert first["expires_at"] == expires
    assert first["same_schema"] is True
    for status, message in first["missing"].values():
        assert status == 404
        assert "not offered by this server" in message
    reached = {"host": first["host"], "password": first["password"]}
    with shop.connect(**reached) as connection:
        connection.execute("CREATE TABLE tried (id int)")
    pooled = {**reached, "host": first["host_pooled"]}
    assert shop.query("SELECT to_regclass('tried')", **pooled) == ("tried",)

    second = create_branch(shop, "preview/pr-7")
    assert second["created"] is False
    assert second["branch_id"] == first["branch_id"]
    assert second["same_schema"] is False

    reset = neonctl_2("branches", "reset", "preview/pr-7", "--project-id", shop.id, "--parent")
    assert reset["id"] == first["branch_id"]
    told = neonctl_2(
        *("connection-string", reset["id"], "--project-id", shop.id, "--extended", "--pooled")
    )
    wait_for(
        lambda: (
            shop.query("SELECT to_regclass('tried')", host=told["host"], password=told["password"])
            == (None,)
        ),
        "the reset",
    )

    neonctl_2.text("branches", "delete", "preview/pr-7", "--project-id", shop.id)
    wait_for(lambda: names(shop) == {"main"}, "the end of the branch")


@pytest.mark.thorough
def test_a_schema_only_preview(node: None, shop: Place, neonctl_2: Cli) -> None:
    with shop.connect() as connection:
        connection.execute("CREATE TABLE customers AS SELECT 1 AS id")
    made = create_branch(shop, "preview/bare", SCHEMA_ONLY="1")
    reached = {"host": made["host"], "password": made["password"]}
    assert shop.query("SELECT count(*) FROM customers", **reached) == (0,)
    neonctl_2.text("branches", "delete", "preview/bare", "--project-id", shop.id)
