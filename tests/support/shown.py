"""The scenes for pictures of the console: a service with an example of everything, and states that
have no address: empty, crowded, in progress, failed, refused, opened, unreachable."""

from collections.abc import Callable
from dataclasses import dataclass

import psycopg
from playwright.sync_api import Page

from tests.support.busy_metrics import busy
from tests.support.client import Client
from tests.support.past import history, past_moment
from tests.support.project import Project
from tests.support.relay import Relay
from tests.support.stack import Stack
from tests.support.waiting import wait_for

BIRDS = """
CREATE TABLE birds AS SELECT n AS id, (array['heron', 'wren', 'robin', 'kite'])[1 + n % 4] AS name,
    round((10 + 300 * sin(n) ^ 2)::numeric, 1) AS grams FROM generate_series(1, 40) n
"""
# Values that are too long for a page, and one that is too long for a form.
LETTERS = """
CREATE TABLE IF NOT EXISTS letters (
    id int PRIMARY KEY, at timestamptz, note text, photo bytea, data jsonb);
INSERT INTO letters SELECT n, '2026-01-31 12:00+00', repeat('To whom it may concern. ', 40 * n),
    decode(repeat('ffd8', 90000 * n), 'hex'), '{"read": true}' FROM generate_series(1, 60) n
    ON CONFLICT DO NOTHING
"""
# The statements that the query page is sent.
QUERY = "SELECT name, count(*), avg(grams)::numeric(6, 1) AS grams\nFROM birds GROUP BY name;"
WRONG = "SELECT name, count(*)\nFROM birds GRUOP BY name;"
SEVERAL = "SELECT count(*) FROM birds; SELECT id, NULL AS nothing FROM birds LIMIT 2"
BRANCHES_OF_MANY = 40


@dataclass
class World:
    stack: Stack
    client: Client
    shop: Project
    # Projects with a failed start, with many branches, and without an endpoint.
    broken: Project
    crowded: Project
    bare: Project
    # The ids in addresses.
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
    return World(stack, client, shop, broken, crowded, bare, ids, stack.new_key())


def _fill(shop: Project) -> dict[str, str]:
    client, main = shop.client, shop.branch_id
    with psycopg.connect(shop.created["connection_uris"][0]["connection_uri"]) as connection:
        connection.execute(BIRDS)
        connection.execute("ALTER TABLE birds ADD PRIMARY KEY (id)")

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
        "asleep_id": asleep,
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


def with_nothing(page: Page, world: World, shoot: Shoot) -> None:
    path = f"/projects/{world.bare.id}"
    for name, address in (("project", path), ("query", f"{path}/query")):
        page.goto(address)
        shoot(f"bare_{name}")
    page.goto(f"{path}/branches/{world.bare.branch_id}")
    shoot("bare_branch")
    page.goto(f"/projects/{world.shop.id}/operations?status=cancelled")
    shoot("bare_operations")
    page.goto("/projects/no-such-project")
    shoot("lost_project")
    page.goto("/no-such-page")
    shoot("lost_page")


def crowded(page: Page, world: World, shoot: Shoot) -> None:
    for name in ("branches", "operations", "timeline"):
        page.goto(f"/projects/{world.crowded.id}/{name}")
        shoot(f"crowded_{name}")


def failed(page: Page, world: World, shoot: Shoot) -> None:
    path = f"/projects/{world.broken.id}"
    page.goto(path)
    shoot("failed_project")
    page.goto(f"{path}/endpoints/{world.broken.endpoint_id}")
    shoot("failed_endpoint")
    page.goto(f"{path}/operations")
    shoot("failed_operations")
    chain = world.broken.operations()[0]["chain_id"]
    page.goto(f"{path}/runs/{chain}")
    shoot("failed_run")
    page.goto("/")
    shoot("failed_dashboard")


def under_way(page: Page, world: World, shoot: Shoot) -> None:
    """Hold its branch's lock, so that a start is held half-way."""
    shop, asleep, branch_id = world.shop, world.ids["asleep_id"], world.ids["branch_id"]
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


def queries(page: Page, world: World, shoot: Shoot) -> None:
    page.goto(f"/projects/{world.shop.id}/query")
    page.get_by_label("SQL", exact=True).fill(WRONG)
    page.locator("#run").click()
    page.locator(".failure").wait_for()
    shoot("query_refused")
    page.get_by_label("SQL", exact=True).fill("DELETE FROM birds;")
    page.locator("#run").click()
    page.locator("#run-writing").wait_for()
    shoot("query_read_only")
    page.get_by_label("SQL", exact=True).fill(SEVERAL)
    page.locator("#run").click()
    page.locator(".cells td").first.wait_for()
    shoot("query_of_several")
    page.get_by_role("button", name="Explain and run").click()
    page.locator(".plan-tree").first.wait_for()
    shoot("query_explained")


def tables(page: Page, world: World, shoot: Shoot) -> None:
    page.goto(f"/projects/{world.shop.id}/tables")
    page.get_by_role("link", name="birds").click()
    page.locator(".cells td").first.wait_for()
    shoot("tables_rows")
    for link, name in (("Add row", "tables_added"), ("Import CSV…", "tables_import")):
        href = page.get_by_text(link, exact=True).get_attribute("href")
        assert href
        page.goto(href)
        shoot(name)
        page.go_back()
    if page.get_by_role("link", name="Edit row 1", exact=True).count():
        page.get_by_role("link", name="Edit row 1", exact=True).click()
        shoot("tables_edited")
        page.locator("textarea:not([readonly])").last.fill("7")
        page.get_by_role("button", name="Review SQL…").click()
        page.locator("pre.review").wait_for()
        shoot("tables_reviewed")
    path = f"/projects/{world.shop.id}/tables"
    world.shop.sql(LETTERS)
    table = f"{path}?branch={world.shop.branch_id}&table=%5B%22public%22%2C%22letters%22%5D"
    page.goto(table)
    shoot("tables_large_values")
    page.goto(f"{table}&column=id&op=eq&value=first")
    shoot("tables_filter_refused")
    page.goto(table)
    page.get_by_role("link", name="Edit row 1", exact=True).click()
    page.locator("dialog[open] form").wait_for()
    shoot("tables_left_out")
    world.shop.suspend(world.ids["asleep_id"])
    page.goto(f"{path}?branch={world.ids['branch_id']}")
    shoot("tables_asleep")


def secrets(page: Page, world: World, shoot: Shoot) -> None:
    """Create a new secret each time: none in a picture is valid afterwards."""
    page.goto(f"/projects/{world.shop.id}/branches/{world.ids['branch_id']}")
    page.get_by_role("button", name="Reveal password of reader").click()
    page.locator("dialog[open] .secret").wait_for()
    shoot("secret_of_role")
    page.goto("/api-keys/new")
    page.get_by_role("textbox", name="Name").fill("deploy")
    page.get_by_role("button", name="Create key").click()
    page.locator(".secret").wait_for()
    shoot("secret_of_key")


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


def refused(page: Page, world: World, shoot: Shoot) -> None:
    """Send forms that are refused."""
    page.goto(f"/projects/{world.shop.id}/new-branch")
    page.get_by_label("Name").fill("staging")
    page.get_by_role("button", name="Create branch").click()
    page.locator(".error").first.wait_for()
    shoot("refused_branch")
    page.goto(f"/projects/{world.shop.id}/endpoints/{world.ids['endpoint_id']}/settings")
    page.get_by_label("Postgres settings").fill("work_mem = lots\nno_such = 1")
    page.get_by_role("button", name="Save").click()
    page.locator(".error").first.wait_for()
    shoot("refused_settings")


def moments(page: Page, world: World, shoot: Shoot) -> None:
    """Choose past moments of a branch. The rows of one of its tables were removed since."""
    before = past_moment(world.shop)
    url = f"/projects/{world.shop.id}/branches/{world.shop.branch_id}/history"
    world.shop.start()
    world.shop.sql("CREATE TABLE IF NOT EXISTS nests (); DROP TABLE nests")
    # Then the log is copied.
    world.shop.suspend()
    wait_for(lambda: history(world.shop)["removals"], "the removal of the table")
    page.goto(f"{url}?moment={before}")
    page.locator(".moment").wait_for()
    shoot("moment_chosen")
    page.locator("#restore-to-moment").click()
    page.locator("dialog[open] form").wait_for()
    shoot("moment_restore")
    page.keyboard.press("Escape")
    page.locator("#branch-of-moment").click()
    page.locator("dialog[open] form").wait_for()
    shoot("moment_branch")
    page.goto(f"{url}?moment=2020-01-31+12:00")
    page.locator(".error").wait_for()
    shoot("moment_refused")
    page.goto(url.removesuffix("/history"))
    shoot("moment_branch_page")


SCENES: tuple[Callable[[Page, World, Shoot], None], ...] = (
    with_nothing,
    crowded,
    failed,
    under_way,
    queries,
    tables,
    secrets,
    opened,
    refused,
    moments,
)


def empty(page: Page, shoot: Shoot) -> None:
    """Sign in with the key of an account without any resources."""
    for name, address in (
        ("dashboard", "/"),
        ("activity", "/activity"),
        ("webhooks", "/webhooks"),
        ("api_keys", "/api-keys"),
        ("go", "/go"),
    ):
        page.goto(address)
        shoot(f"empty_{name}")


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
