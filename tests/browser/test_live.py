"""Open pages while things change elsewhere, and while nothing changes."""

import re
import time

import psycopg
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Elsewhere
from tests.browser.looking import expect_accessible, wire
from tests.browser.open_pages import SOON, idle, open_page, settled
from tests.browser.test_journey import assert_not_reloaded, hide, sign_in
from tests.selection import first_of
from tests.support.project import Project
from tests.support.stack import Stack
from tests.support.waiting import wait_for

# Seconds between two polls at most while something changes, and for the page to show it.
PAUSE = 3.5


@pytest.fixture(scope="module")
def shop(stack: Stack) -> Project:
    return Project.create(stack, stack.client(), name="shop")


def connect(shop: Project) -> None:
    """Connect as a client, for which the proxy wakes the endpoint."""
    query = {"role_name": "neondb_owner", "database_name": "neondb"}
    uri = shop.client.get(f"{shop.path}/connection_uri", **query)["uri"]
    psycopg.connect(uri, hostaddr="127.0.0.1").close()


@pytest.mark.parametrize("path", first_of(["/endpoints/{endpoint}", ""]))
def test_a_change_made_elsewhere_appears_at_once(page: Page, shop: Project, path: str) -> None:
    shop.done(shop.start())
    open_page(page, shop, path.format(endpoint=shop.endpoint_id))
    state = page.locator("#live .state").first
    expect(state).to_contain_text("Active")
    shop.suspend()
    expect(state).to_contain_text("Idle", timeout=SOON)
    # A client connects.
    connect(shop)
    expect(state).to_contain_text("Active", timeout=SOON)
    assert_not_reloaded(page)


@pytest.mark.thorough
@pytest.mark.parametrize("pause", [0.3, 0.8, 3.0])
def test_every_change_is_shown_however_slow_the_answers_are(
    elsewhere: Elsewhere, shop: Project, pause: float
) -> None:
    """A branch gets another name each second, for longer than an answer takes."""
    page, api = elsewhere.page, elsewhere.relay
    open_page(page, shop)
    page.evaluate(
        """() => {
            window.seen = [];
            const note = () => {
                const name = /state-(\\d+)/.exec(document.getElementById("live").textContent);
                if (name) seen.push([Number(name[1]), Date.now() / 1000]);
            };
            const all = {childList: true, characterData: true, subtree: true};
            new MutationObserver(note).observe(document.body, all);
        }"""
    )
    api.delay = pause
    branch = shop.branch_path(rest="")
    changed = {}
    for number in range(max(8, int(4 * pause))):
        shop.client.patch(branch, {"branch": {"name": f"state-{number}"}})
        changed[number] = time.time()
        idle(page, 1)
    page.wait_for_function("last => seen.some(([n]) => n >= last)", arg=number)
    answer = page.evaluate(
        """() => Math.max(...performance.getEntriesByType("resource")
            .filter((one) => one.name.includes("/live")).map((one) => one.duration)) / 1000"""
    )
    # A change is in the answer under way or in the next one.
    seen = page.evaluate("seen")
    late = {
        number: round(first - at, 2)
        for number, at in changed.items()
        if (first := min(when for n, when in seen if n >= number)) - at > 2 * answer + PAUSE
    }
    assert not late, (answer, late, seen)


@pytest.mark.thorough
def test_after_the_users_own_change_no_older_answer_is_shown(
    elsewhere: Elsewhere, shop: Project
) -> None:
    page, api = elsewhere.page, elsewhere.relay
    shop.done(shop.suspend())
    open_page(page, shop)
    api.delay = 0.8
    page.evaluate("Perch.renew()")
    page.get_by_role("button", name="Start").first.click()
    expect(page.locator("#live .state").first).to_contain_text(
        re.compile("starting|Active"), timeout=SOON + 2_000
    )
    expect(page.locator("#live .state").first).to_have_text("Active", timeout=10_000)


def test_an_idle_page_costs_almost_no_bytes(page: Page, shop: Project) -> None:
    # The page of a project to which nobody has connected is read at each poll.
    connect(shop)
    page.clock.install()
    open_page(page, shop)
    idle(page, 2)
    with wire(page) as heard:
        for _ in range(24):
            with page.expect_response(re.compile("/live")):
                page.clock.run_for(5_000)
        settled(page)
    assert {status for _, status, _ in heard.answers} == {204}
    assert max(size for _, _, size in heard.answers) <= 400
    # Each further answer without a change makes the pause longer, up to five seconds.
    assert len(heard.answers) <= 40


@pytest.mark.thorough
def test_a_dialog_stays_open_while_the_page_behind_it_renews(page: Page, shop: Project) -> None:
    shop.done(shop.start())
    open_page(page, shop, f"/endpoints/{shop.endpoint_id}")
    dialog = page.locator("dialog[open]")
    page.get_by_label(re.compile("More actions")).click()
    page.get_by_role("link", name="Edit settings…", exact=True).click()
    dialog.get_by_label("Postgres settings").fill("work_mem = 7MB")
    shop.suspend()
    expect(page.locator("#live .state").first).to_contain_text("Idle", timeout=SOON)
    expect(dialog.get_by_label("Postgres settings")).to_have_value("work_mem = 7MB")
    # The reader closes it, and the focus is back on its opener.
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.get_by_label(re.compile("More actions"))).to_be_focused()


@pytest.mark.thorough
def test_a_double_click_on_an_opener_keeps_what_was_typed(page: Page, shop: Project) -> None:
    open_page(page, shop, f"/endpoints/{shop.endpoint_id}")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.locator("#edit-settings").dblclick()
    page.locator("dialog[open]").get_by_label("Suspend after").select_option("own")
    field = page.locator("dialog[open]").get_by_label("Minutes without activity")
    field.fill("77")
    # Act as a second answer that arrives late.
    page.evaluate("document.getElementById('edit-settings').click()")
    idle(page, 0.5)
    expect(field).to_have_value("77")
    expect(page.locator("#notices")).to_be_attached()
    assert len([url for url in asked if url.endswith("/settings")]) == 1


@pytest.mark.thorough
def test_a_renewal_keeps_the_open_menu_the_focus_and_the_scroll_position(
    page: Page, shop: Project
) -> None:
    shop.done(shop.start())
    open_page(page, shop)
    menu = page.locator(f"[id='menu-{shop.endpoint_id}']")
    menu.locator("summary").click()
    page.keyboard.press("Tab")
    reassign = page.locator(f"[id='reassign-{shop.endpoint_id}']")
    expect(reassign).to_be_focused()
    page.set_viewport_size({"width": 1280, "height": 300})
    page.evaluate("scrollTo(0, 100)")
    shop.suspend()
    expect(page.locator("#live .state").first).to_contain_text("Idle", timeout=SOON)
    expect(reassign).to_be_visible()
    expect(reassign).to_be_focused()
    assert page.evaluate("scrollY") == 100


@pytest.mark.thorough
def test_the_page_of_a_deleted_resource_becomes_inert(page: Page, stack: Stack) -> None:
    project = Project.create(stack, stack.client(), name="short-lived")
    page.clock.install()
    open_page(page, project, f"/endpoints/{project.endpoint_id}")
    project.done(project.client.delete(project.endpoint_path()))
    expect(page.locator("#poll")).to_contain_text("endpoint not found", timeout=SOON)
    expect(page.locator("#main")).to_have_class(re.compile("gone"))
    expect(page.locator("#live .head .actions").first).to_have_attribute("inert", "")
    expect(page.locator("#edit-settings")).to_have_attribute("inert", "")
    expect_accessible(page)
    with wire(page) as heard:
        page.clock.run_for(45_000)
        settled(page)
    assert not heard.answers


@pytest.mark.thorough
def test_a_hidden_page_does_not_poll(page: Page, shop: Project) -> None:
    shop.done(shop.start())
    open_page(page, shop)
    hide(page)
    with wire(page) as heard:
        shop.done(shop.suspend())
        idle(page, 2)
    assert not heard.answers
    page.evaluate(
        """() => {
            Object.defineProperty(document, "hidden", {value: false});
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
    )
    expect(page.locator("#live .state").first).to_contain_text("Idle", timeout=SOON)


@pytest.mark.thorough
def test_times_on_the_page_advance(page: Page, shop: Project) -> None:
    open_page(page, shop)
    ago = page.locator("#live time[data-moves=ago]").first
    page.evaluate(
        """() => {
            const time = document.querySelector("#live time[data-moves=ago]");
            time.dateTime = new Date(Date.now() - 61_000).toISOString();
        }"""
    )
    expect(ago).to_have_text("1 min ago")
    wait_for(lambda: "UTC" in (ago.get_attribute("title") or ""), "the exact time")


@pytest.mark.thorough
def test_an_element_that_changes_its_kind_changes_its_look(page: Page, stack: Stack) -> None:
    project = Project.create(stack, stack.client(), name="shop")
    free = project.new_branch_id(name="free")
    open_page(page, project, f"/branches/{free}")
    region = page.get_by_role("region", name="Endpoint")
    expect(region.locator(".empty")).to_be_visible()
    # Created elsewhere, so that it appears with a renewal, which is itself a request of htmx.
    project.done(project.create_endpoint(free))
    expect(region.locator(".perching")).to_be_visible(timeout=20_000)
    expect(region.locator(".empty")).to_have_count(0)


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
    own = page.locator(".operations tbody tr")
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
