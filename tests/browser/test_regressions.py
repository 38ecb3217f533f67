"""Former defects of pages: waiting operations, pooling, an endpoint's operations, cookies after
sign-out, and searches among many projects."""

import json
import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Elsewhere, opened
from tests.browser.open_pages import SOON, open_page
from tests.browser.test_journey import sign_in, sign_out
from tests.support.project import Project
from tests.support.stack import Stack


@pytest.fixture(scope="module")
def shop(stack: Stack) -> Project:
    return Project.create(stack, stack.client(), name="shop")


def test_a_waiting_operation_is_not_shown_as_running(page: Page, shop: Project) -> None:
    endpoint_page = f"{shop.path}/endpoints/{shop.endpoint_id}"
    shop.start()
    sign_in(page, shop.client.key)
    with shop.locked():
        suspend, start = shop.client.post(shop.endpoint_path(rest="/restart"))["operations"]
        run = f"{shop.path}/runs/{start['chain_id']}"
        for path in ("/", shop.path, endpoint_page, f"{shop.path}/operations", run):
            page.goto(path)
            expect(page.locator("#live")).to_be_visible()
            expect(page.locator("[hx-trigger=load]")).to_have_count(0)
            expect(page.locator("main")).not_to_contain_text(re.compile("running for", re.I))
        # On its run's page, and in its endpoint's list.
        expect(page.locator(f"[id='operation-{start['id']}'] tr.operation .word")).to_have_text(
            "Waiting"
        )
        expect(page.locator(f"[id='operation-{suspend['id']}'] tr.operation .word")).to_have_text(
            "In progress"
        )
        page.goto(endpoint_page)
        for name, status in (("Start endpoint", "Waiting"), ("Suspend endpoint", "In progress")):
            row = page.locator(".operations tbody tr").filter(has_text=name).first
            expect(row.locator(".status")).to_have_text(status)
        # While a restart is pending, the page shows the present state and the operation in
        # progress.
        expect(page.locator("#live .about .state.pending")).to_have_text("suspending…")
    shop.client.ended(shop.id, start["id"])


@pytest.mark.thorough
def test_pooling_has_the_same_words_everywhere(page: Page, shop: Project) -> None:
    sign_in(page, shop.client.key)
    dialog = page.locator("dialog[open]")
    endpoint_page = f"{shop.path}/endpoints/{shop.endpoint_id}"
    everything, one = "ll connections", "nly the -pooler host"
    for is_on, said, other in ((True, f"A{everything}", one), (False, f"O{one}", everything)):
        shop.change(pooler_enabled=is_on)
        page.goto(shop.path)
        row = page.locator(".endpoints tbody tr").filter(has_text=shop.endpoint_id)
        expect(row.locator("[data-label=Pooling]")).to_have_text(said)
        page.get_by_label(f"More actions for {shop.endpoint_id}").click()
        expect(
            row.get_by_role("button", name=f"Pool {'o' if is_on else 'a'}{other}")
        ).to_be_visible()
        page.goto(endpoint_page)
        fact = page.locator(".facts div").filter(has=page.get_by_text("Pooling", exact=True))
        expect(fact.locator("dd")).to_have_text(re.compile(f"^{said}(, transaction mode)?$"))
        expect(page.locator("main").get_by_text("Pooling", exact=True)).to_have_count(1)
        page.goto(f"{shop.path}/events")
        change = page.locator(".activity > li").filter(has_text=re.compile("pool", re.I)).first
        expect(change).to_contain_text("was changed: pooling")
        expect(change.locator(".field")).to_have_text("pooling")
        expect(change).not_to_contain_text(re.compile("pooler", re.I))
    shop.new_branch_id(name="free")
    page.goto(shop.path)
    page.locator("#create-endpoint").click()
    expect(dialog.get_by_label("Pool all connections")).to_be_visible()


@pytest.mark.thorough
def test_an_endpoints_operations_are_found_in_a_busy_project(page: Page, stack: Stack) -> None:
    """A renewal of the endpoint's page, caused by other work of the project, closes no dialog."""
    busy = Project.create(stack, stack.client(), name="busy")
    quiet = busy.endpoint_id
    other = busy.create_endpoint(busy.new_branch_id(name="dev"))["endpoint"]["id"]
    for _ in range(6):
        busy.suspend(other)
        busy.start(other)
    newest = busy.client.get(f"{busy.path}/operations", limit=10)["operations"]
    assert quiet not in {one["endpoint_id"] for one in newest}

    open_page(page, busy, f"/endpoints/{quiet}")
    own = page.locator(".operations.own tbody tr")
    expect(own.filter(has_text="Start endpoint")).to_have_count(1)
    expect(page.locator("main")).not_to_contain_text("No operations yet")
    page.get_by_label(re.compile("More actions")).click()
    page.get_by_role("link", name="Edit settings…", exact=True).click()
    field = page.locator("dialog[open]").get_by_label("Postgres settings")
    field.fill("work_mem = 7MB")
    with page.expect_response(re.compile("/live"), timeout=SOON):
        busy.suspend(other)
    expect(field).to_have_value("work_mem = 7MB")
    # The endpoint's own operation, which becomes the newest, does not close it either.
    busy.suspend(quiet)
    expect(page.locator("#live .about .state").first).to_contain_text("Idle", timeout=SOON)
    expect(own.filter(has_text="Suspend endpoint")).to_have_count(1)
    expect(field).to_have_value("work_mem = 7MB")


@pytest.mark.thorough
def test_a_cookie_is_invalid_after_signing_out(
    page: Page, browser: Browser, stack: Stack, shop: Project
) -> None:
    sign_in(page, shop.client.key)
    kept = page.context.storage_state()
    with opened(browser, stack.console_url, storage_state=kept) as thief:
        thief.goto(shop.path)
        expect(thief.get_by_role("heading", name="shop", level=1)).to_be_visible()
        sign_out(page)
        thief.goto(shop.path)
        expect(thief.get_by_label("API key")).to_be_visible()
        expect(thief.get_by_text(shop.endpoint_id)).to_have_count(0)


def many_projects(body: bytes) -> bytes:
    """Return a list of projects with two hundred more in it."""
    data = json.loads(body) if body else {}
    if isinstance(data, dict) and data.get("projects"):
        first = data["projects"][0]
        more = ({"id": f"more-{n}", "name": f"project {n:03}"} for n in range(200))
        data["projects"] += [first | one for one in more]
    return json.dumps(data).encode()


@pytest.mark.thorough
def test_a_project_is_found_quickly_among_two_hundred(elsewhere: Elsewhere, shop: Project) -> None:
    page = elsewhere.page
    sign_in(page, shop.client.key)
    elsewhere.relay.twists = many_projects
    page.goto("/")
    page.keyboard.press("/")
    search = page.get_by_role("searchbox")
    expect(search).to_be_focused()
    # 17 itself, 117, and those from 170 on.
    search.press_sequentially("project 17")
    expect(page.locator(".projects tbody tr")).to_have_count(12)
    expect(page).to_have_url(re.compile("search=project"))
    page.goto("/?sort=name")
    expect(page.locator(".projects tbody tr").first).to_contain_text("project 000")
