"""The scenes for pictures of the console: a service with an example of everything, and what
`tests.browser.world` has no state for: crowded, in progress, opened, unreachable, busy."""

from collections.abc import Callable
from dataclasses import dataclass

import psycopg
from playwright.sync_api import Page

from tests.support.busy_metrics import busy
from tests.support.client import Client
from tests.support.past import past_moment
from tests.support.project import Project
from tests.support.relay import Relay
from tests.support.stack import Stack

BIRDS = """
CREATE TABLE birds AS SELECT n AS id, (array['heron', 'wren', 'robin', 'kite'])[1 + n % 4] AS name,
    round((10 + 300 * sin(n) ^ 2)::numeric, 1) AS grams FROM generate_series(1, 40) n
"""
# The table of the states of `tests.browser.world`.
EGGS = """
CREATE TABLE eggs (id int PRIMARY KEY, kind text, note json);
INSERT INTO eggs SELECT n, repeat('speckled ', n), NULL FROM generate_series(1, 60) n
"""
# The statement that the query page is sent.
QUERY = "SELECT name, count(*), avg(grams)::numeric(6, 1) AS grams\nFROM birds GROUP BY name;"
BRANCHES_OF_MANY = 40


@dataclass
class World:
    stack: Stack
    client: Client
    shop: Project
    crowded: Project
    # The ids in addresses, by the names that `tests.browser.world` uses.
    ids: dict[str, str]
    # The key of an account without any resources.
    empty_key: str


def new_world(stack: Stack) -> World:
    client = Client(stack.api_url, (stack.state_dir / "api-key").read_text().strip())
    shop = Project.create(stack, client, name="Bird shop")
    ids = _fill(shop)
    bare = Project.create(stack, client, name="Nest")
    bare.done(client.delete(bare.endpoint_path()))
    crowded = Project.create(stack, client, name="Aviary")
    _crowd(crowded)
    broken = Project.create(stack, client, name="Night shift")
    _break(broken)
    ids |= {
        "bare": bare.id,
        "bare_branch": bare.branch_id,
        "failing": broken.id,
        "failing_endpoint": broken.endpoint_id,
        "failed": broken.operations()[0]["chain_id"],
        "moment": past_moment(shop),
    }
    return World(stack, client, shop, crowded, ids, stack.new_key())


def _fill(shop: Project) -> dict[str, str]:
    client, main = shop.client, shop.branch_id
    with psycopg.connect(shop.created["connection_uris"][0]["connection_uri"]) as connection:
        connection.execute(BIRDS)
        connection.execute("ALTER TABLE birds ADD PRIMARY KEY (id)")
        connection.execute(EGGS)

    def branch(name: str, parent: str, *, reached: bool = False) -> tuple[str, str]:
        made = shop.new_branch(endpoint=reached, name=name, parent_id=parent)
        return made["branch"]["id"], made["endpoints"][0]["id"] if reached else ""

    staging, asleep = branch("staging", main, reached=True)
    _, disabled = branch("preview/checkout", staging, reached=True)
    branch("preview/search", staging)
    dev, _ = branch("dev", main)
    for name in ("dev/ann", "dev/ben"):
        branch(name, dev, reached=name.endswith("ann"))
    shop.sql("ALTER TABLE birds ADD wingspan int", endpoint_id=asleep)
    shop.suspend(asleep)
    shop.change(disabled, disabled=True)
    shop.done(client.post(shop.branch_path(staging, "/roles"), {"role": {"name": "reader"}}))
    snapshot = shop.done(client.post(shop.branch_path(staging, "/snapshot?name=before-migration")))
    webhook = client.post(
        "/webhooks", {"webhook": {"url": "https://hooks.example.com/perch", "event_types": ["*"]}}
    )
    key = client.post("/api_keys", {"key_name": "ci", "read_only": True})
    operation = shop.operations()[0]
    return {
        "project_id": shop.id,
        "branch_id": staging,
        "endpoint_id": shop.endpoint_id,
        "main": main,
        "asleep": asleep,
        "disabled": disabled,
        "operation_id": operation["id"],
        "chain_id": operation["chain_id"],
        "snapshot_id": snapshot["snapshot"]["id"],
        "webhook_id": webhook["webhook"]["id"],
        "host_id": "local",
        "key_id": str(key["id"]),
        "role_name": "neondb_owner",
        "name": "neondb",
    }


def _crowd(crowded: Project) -> None:
    """Create many branches, one of them eight levels deep."""
    parents = [crowded.branch_id]
    for number in range(BRANCHES_OF_MANY):
        is_deep = number < 8
        name = f"feature/{number:02}-a-name-that-people-give" if number % 3 else f"pr-{number}"
        made = crowded.new_branch_id(name=name, parent_id=parents[-1 if is_deep else number % 5])
        parents.append(made)


def _break(broken: Project) -> None:
    """Remove the control file of its data, so that its compute does not start."""
    broken.suspend()
    control = broken.stack.data_dir(broken.branch_id) / "global" / "pg_control"
    control.rename(control.with_name("pg_control.away"))
    broken.client.finish(broken.client.post(broken.endpoint_path(rest="/start")))


# Takes a picture of the page as it is, under a name.
Shoot = Callable[[str], None]


def crowded(page: Page, world: World, shoot: Shoot) -> None:
    for name in ("branches", "operations", "timeline"):
        page.goto(f"/projects/{world.crowded.id}/{name}")
        shoot(f"crowded_{name}")


def under_way(page: Page, world: World, shoot: Shoot) -> None:
    """Hold its branch's lock, so that a start is held half-way."""
    shop, asleep, branch_id = world.shop, world.ids["asleep"], world.ids["branch_id"]
    shop.suspend(asleep)
    path = f"/projects/{shop.id}"
    with shop.locked(branch_id):
        (start,) = world.client.post(shop.endpoint_path(asleep, "/start"))["operations"]
        for name, address in (
            ("endpoint", f"{path}/endpoints/{asleep}"),
            ("project", path),
            ("branch", f"{path}/branches/{branch_id}"),
            ("branches", f"{path}/branches"),
            ("operations", f"{path}/operations"),
            ("run", f"{path}/runs/{start['chain_id']}"),
            ("dashboard", "/"),
        ):
            page.goto(address)
            shoot(f"under_way_{name}")
    world.client.ended(shop.id, start["id"])
    shop.suspend(asleep)
    page.goto(f"{path}/endpoints/{asleep}")
    shoot("asleep_endpoint")


def opened(page: Page, world: World, shoot: Shoot) -> None:
    """Open dialogs, menus and folded parts."""
    branch = f"/projects/{world.shop.id}/branches/{world.ids['branch_id']}"
    page.goto(branch)
    page.locator(f"#menu-{world.ids['branch_id']} summary").click()
    shoot("opened_menu")
    page.get_by_role("link", name="Rename…").click()
    page.locator("dialog[open] form").wait_for()
    page.locator("dialog[open]").get_by_text("Show as curl").click()
    page.locator("dialog[open] .curl").wait_for()
    shoot("opened_dialog")
    page.goto(branch)
    page.goto(f"/projects/{world.shop.id}")
    page.get_by_role("button", name="Connect…").first.click()
    page.locator("dialog[open] .connection").wait_for()
    shoot("opened_connect")
    page.goto(f"/projects/{world.shop.id}/operations")
    page.locator(".filters summary").click()
    shoot("opened_filters")
    page.locator("#menu-account summary").click()
    shoot("opened_account")
    page.goto("/")
    page.keyboard.press("Control+k")
    page.locator("dialog[open] .goals").wait_for()
    shoot("opened_palette")


SCENES: tuple[Callable[[Page, World, Shoot], None], ...] = (crowded, under_way, opened)


def away(page: Page, world: World, between: Relay, shoot: Shoot) -> None:
    """Make the console unreachable while a page is open, and then its server."""
    page.goto(f"/projects/{world.shop.id}")
    page.context.set_offline(True)
    page.locator("#trouble").wait_for()
    shoot("away_console")
    page.context.set_offline(False)
    between.is_away = True
    page.goto(f"/projects/{world.shop.id}")
    shoot("away_server")
    between.is_away = False


def monitored(page: Page, world: World, between: Relay, shoot: Shoot) -> None:
    """Show the charts of an endpoint as if it had been busy for days."""
    between.twists = busy
    url = f"/projects/{world.shop.id}/endpoints/{world.shop.endpoint_id}/monitoring"
    for range_ in ("6h", "7d"):
        page.goto(f"{url}?range={range_}")
        shoot(f"monitored_{range_}")
    page.locator("#table-rows summary").click()
    shoot("monitored_table")
    between.twists = None
