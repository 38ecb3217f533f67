"""Open pages: while things change elsewhere, while nothing changes, and during failures."""

import re
import time

import psycopg
import pytest
from playwright.sync_api import Browser, Page, Request, expect

from tests.browser.conftest import Elsewhere, opened
from tests.browser.looking import cut_off, expect_accessible, wire
from tests.browser.test_journey import assert_not_reloaded, hide, mark, sign_in, sign_out
from tests.support.client import Client
from tests.support.project import Project
from tests.support.stack import Stack
from tests.support.waiting import wait_for

# Milliseconds within which a change made elsewhere appears.
SOON = 3_000


@pytest.fixture(scope="module")
def shop(stack: Stack) -> Project:
    return Project.create(stack, Client(stack.api_url, stack.new_key()), name="shop")


def open_page(page: Page, shop: Project, path: str = "") -> None:
    """Open the project's page, or one below it, and wait until it is complete and listening."""
    sign_in(page, shop.client.key)
    with page.expect_response(re.compile("/changes")):
        page.goto(f"/projects/{shop.id}{path}")
    expect(page.locator("[hx-trigger=load]")).to_have_count(0)
    mark(page)


def connect(shop: Project) -> None:
    """Connect as a client, for which the proxy wakes the endpoint."""
    query = {"role_name": "neondb_owner", "database_name": "neondb"}
    uri = shop.client.get(f"{shop.path}/connection_uri", **query)["uri"]
    psycopg.connect(uri, hostaddr="127.0.0.1").close()


def idle(page: Page, seconds: float) -> None:
    page.wait_for_function(
        "([start, ms]) => performance.now() - start > ms",
        arg=[page.evaluate("performance.now()"), seconds * 1000],
    )


def settled(page: Page) -> None:
    """Wait until every request of the page has its answer."""
    expect(page.locator("body.htmx-request, .htmx-request")).to_have_count(0)


@pytest.mark.parametrize("path", ["", "/endpoints/{endpoint}"])
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
    api.pause = pause
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
        if (first := min(when for n, when in seen if n >= number)) - at > 2 * answer + 1
    }
    assert not late, (answer, late, seen)


@pytest.mark.thorough
def test_after_the_users_own_change_no_older_answer_is_shown(
    elsewhere: Elsewhere, shop: Project
) -> None:
    page, api = elsewhere.page, elsewhere.relay
    shop.done(shop.suspend())
    open_page(page, shop)
    api.pause = 0.8
    page.evaluate("Perch.renew()")
    page.get_by_role("button", name="Start").first.click()
    expect(page.locator("#live .state").first).to_contain_text(
        re.compile("starting|Active"), timeout=SOON + 2_000
    )
    expect(page.locator("#live .state").first).to_have_text("Active", timeout=10_000)


@pytest.mark.thorough
def test_any_number_of_windows_share_one_stream(page: Page, stack: Stack, shop: Project) -> None:
    """Browsers open six connections to a server, and a stream occupies one for ever."""
    other = Project.create(stack, shop.client, name="other")
    for project in (shop, other):
        project.done(project.start())
    open_page(page, shop)
    streams: list[str] = []

    def note(request: Request) -> None:
        if "/changes" in request.url:
            streams.append(request.url)

    page.context.on("request", note)
    pages = [page] + [page.context.new_page() for _ in range(7)]
    for number, one in enumerate(pages[1:-1]):
        project = (other, shop)[number % 2]
        one.goto(f"/projects/{project.id}")
    pages[-1].goto("/")

    def expect_state(word: str) -> None:
        for one in pages[:-1]:
            expect(one.locator("#live .state").first).to_contain_text(word, timeout=SOON)
        expect(pages[-1].locator("#live .states").first).to_contain_text(word, timeout=SOON)

    expect_state("ctive")
    assert len({url.split("?")[0] for url in streams}) <= 1, streams
    for project in (shop, other):
        project.suspend()
    expect_state("dle")
    # The window with the stream is closed, and another one takes over.
    pages.pop(0).close()
    for project in (shop, other):
        project.start()
    expect_state("ctive")


def test_an_idle_page_costs_almost_no_bytes(page: Page, shop: Project) -> None:
    shop.start()
    page.clock.install()
    open_page(page, shop)
    idle(page, 2)
    with wire(page) as heard:
        # Shorter than the silence after which the page takes its channel for dead.
        page.clock.run_for(45_000)
        settled(page)
    assert not heard.answers


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
    project = Project.create(stack, Client(stack.api_url, stack.new_key()), name="short-lived")
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
def test_a_broken_connection_is_announced_once_and_the_message_goes_away(
    rough_page: Page, shop: Project
) -> None:
    page = rough_page
    shop.done(shop.start())
    open_page(page, shop)
    with cut_off(page):
        expect(page.locator("#trouble")).to_have_text(
            "Cannot reach the console. Retrying.", timeout=15_000
        )
        idle(page, 4)
        expect(page.locator("#trouble")).to_be_visible()
        expect(page.locator(".notice")).to_have_count(0)
        # A button's request may have been executed; a request that only shows a form has no effect.
        page.locator("#create-endpoint").click()
        expect(page.locator(".notice")).to_have_text("Cannot reach the console.")
        shop.suspend()
    expect(page.locator("#trouble")).to_be_hidden(timeout=15_000)
    expect(page.locator("#live .state").first).to_contain_text("Idle")
    assert_not_reloaded(page)


@pytest.mark.thorough
def test_a_console_that_does_not_come_back_is_reported(rough_page: Page, shop: Project) -> None:
    """It is reported however quickly each attempt to reconnect fails."""
    page = rough_page
    sign_in(page, shop.client.key)
    page.route("**/changes*", lambda route: route.abort())
    page.goto(f"/projects/{shop.id}")
    trouble = page.locator("#trouble")
    expect(trouble).to_have_text("Cannot reach the console. Retrying.", timeout=9_000)
    page.unroute("**/changes*")
    expect(trouble).to_be_hidden(timeout=9_000)


@pytest.mark.thorough
def test_an_api_outage_is_reported_in_place(elsewhere: Elsewhere, shop: Project) -> None:
    page, api = elsewhere.page, elsewhere.relay
    shop.done(shop.start())
    open_page(page, shop)
    api.is_away = True
    expect(page.locator("#poll")).to_contain_text("Retrying", timeout=10_000)
    expect(page.locator(".notice")).to_have_count(0)
    # Then the page is notified of changes again.
    with page.expect_response(re.compile("/changes")):
        api.is_away = False
        expect(page.locator("#poll")).to_contain_text("No operation in progress", timeout=10_000)
    shop.suspend()
    expect(page.locator("#live .state").first).to_contain_text("Idle", timeout=SOON)
    assert_not_reloaded(page)


@pytest.mark.thorough
def test_a_failed_search_says_so_and_ends(elsewhere: Elsewhere, shop: Project) -> None:
    page, api = elsewhere.page, elsewhere.relay
    open_page(page, shop, f"/endpoints/{shop.endpoint_id}/pg-settings")
    page.evaluate("Perch.renew()")
    idle(page, 1)
    rows = page.locator(".pg-settings tbody tr")
    expect(page.locator("header.bar")).to_have_count(1)
    expect(rows).to_have_count(25)
    api.is_away = True
    page.get_by_role("searchbox").fill("work_mem")
    expect(page.locator("#poll")).to_contain_text("Retrying", timeout=10_000)
    expect(rows).to_have_count(25)
    api.is_away = False
    expect(rows.first).to_contain_text("work_mem", timeout=10_000)
    expect(page.locator("#poll")).to_be_hidden()
    expect(page.locator("header.bar")).to_have_count(1)
    expect(page.locator("#live")).to_have_attribute(
        "data-live", re.compile("-live.search=work_mem")
    )
    assert_not_reloaded(page)


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["fails first", "is overtaken"])
def test_no_renewal_reverts_a_search(elsewhere: Elsewhere, shop: Project, way: str) -> None:
    """A renewal would show all rows again below a field that has a search in it."""
    page, api = elsewhere.page, elsewhere.relay
    open_page(page, shop, f"/endpoints/{shop.endpoint_id}/pg-settings")
    rows = page.locator(".pg-settings tbody tr")
    expect(rows).to_have_count(25)
    idle(page, 1)
    field = page.get_by_role("searchbox")
    if way == "fails first":
        api.is_away = True
        field.fill("work_mem")
        expect(page.locator("#poll")).to_contain_text("Retrying", timeout=10_000)
        api.is_away = False
    else:
        api.delay = 0.5
        with page.expect_request(re.compile("search=work_mem")):
            field.fill("work_mem")
    page.evaluate("Perch.renew()")
    api.delay = 0.0
    expect(rows.first).to_contain_text("work_mem")
    settled(page)
    expect(rows.first).to_contain_text("work_mem")
    expect(page.locator("#poll")).to_be_hidden()
    assert (way == "fails first") or "search=work_mem" in page.url
    field.fill("")
    expect(rows).to_have_count(25)


@pytest.mark.thorough
def test_without_a_stream_of_events_changes_appear_as_soon(
    elsewhere: Elsewhere, shop: Project
) -> None:
    page, api = elsewhere.page, elsewhere.relay
    api.missing = {"/events"}
    shop.done(shop.start())
    open_page(page, shop)
    state = page.locator("#live .state").first
    # A change that this page's user did not make: the page learns of it only by polling.
    for change, word in ((shop.suspend, "Idle"), (shop.start, "Active"), (shop.suspend, "Idle")):
        idle(page, 1)
        change()
        expect(state).to_contain_text(word, timeout=SOON)
    # However many pages are open, the API gets one request; a poll costs no more than a stream.
    second = page.context.new_page()
    second.goto(page.url)
    idle(page, 3)
    began, before = time.monotonic(), api.asked_for("/branches")
    with wire(page) as heard:
        idle(page, 6)
    looks = api.asked_for("/branches") - before
    assert looks <= (time.monotonic() - began) / 1.25 + 1
    assert not heard.answers


@pytest.mark.thorough
def test_without_the_channel_the_page_polls(rough_page: Page, shop: Project) -> None:
    page = rough_page
    shop.done(shop.start())
    sign_in(page, shop.client.key)
    page.route("**/changes*", lambda route: route.fulfill(status=502, body="no"))
    page.clock.install()
    with page.expect_response(re.compile("/live")):
        page.goto(f"/projects/{shop.id}")
    expect(page.locator("[hx-trigger=load]")).to_have_count(0)
    settled(page)
    with wire(page) as heard:
        # One minute. At its end, the page tries the channel again.
        for _ in range(11):
            with page.expect_response(re.compile("/live")):
                page.clock.run_for(5_000)
        with page.expect_response(re.compile("/changes")):
            page.clock.run_for(5_000)
        settled(page)
    # They have no body.
    assert len(heard.to("/live")) <= 12
    assert {status for _, status, _ in heard.to("/live")} == {304}
    assert max(size for _, _, size in heard.to("/live")) <= 400
    assert heard.bytes <= 5_000
    shop.suspend()
    expect(page.locator("#live .state").first).to_contain_text("Idle", timeout=7_000)


@pytest.mark.thorough
def test_a_page_stays_when_the_user_signs_out_elsewhere(page: Page, stack: Stack) -> None:
    project = Project.create(stack, Client(stack.api_url, stack.new_key()), name="shop")
    project.new_branch_id(name="free")
    open_page(page, project)
    dialog = page.locator("dialog[open]")
    page.locator("#create-endpoint").click()
    dialog.get_by_label("Suspend after").select_option("own")
    dialog.get_by_label("Minutes without activity").fill("77")

    other = page.context.new_page()
    other.goto("/")
    sign_out(other)
    # Something changes that the page may not read now.
    project.suspend()
    expect(page.locator("#poll")).to_contain_text("Sign in again", timeout=25_000)
    send = dialog.get_by_role("button", name="Create endpoint")
    send.click()
    expect(dialog.get_by_role("alert")).to_contain_text("You are not signed in")
    expect(dialog.get_by_label("Minutes without activity")).to_have_value("77")

    with page.context.expect_page() as signing_in:
        dialog.get_by_role("link", name="Sign in again").click()
    signing_in.value.get_by_label("API key").fill(project.client.key)
    signing_in.value.get_by_role("button", name="Sign in").click()
    expect(signing_in.value.get_by_role("heading", name="Projects", exact=True)).to_be_visible()
    send.click()
    expect(dialog).to_have_count(0)
    expect(page.locator(".endpoints tbody tr")).to_have_count(2)
    assert {e["suspend_timeout_seconds"] for e in project.endpoints()} >= {77 * 60}
    assert_not_reloaded(page)


@pytest.mark.thorough
def test_a_form_from_before_a_new_sign_in_asks_for_confirmation(page: Page, stack: Stack) -> None:
    page_of, anew = stack.new_key(), stack.new_key()
    sign_in(page, page_of)
    page.goto("/new-project")
    name = page.get_by_role("textbox", name="Name")
    name.fill("typed before")
    other = page.context.new_page()
    other.goto("/")
    sign_out(other)
    sign_in(other, anew)
    page.get_by_role("button", name="Create project").click()
    # Another user may be signed in now.
    expect(page.get_by_role("alert")).to_contain_text("You have signed in again")
    expect(name).to_have_value("typed before")
    page.get_by_role("button", name="Create project").click()
    expect(page.get_by_role("heading", name="typed before")).to_be_visible()


@pytest.mark.thorough
def test_a_page_of_a_previous_sign_in_changes_nothing(page: Page, stack: Stack) -> None:
    mine, others = stack.new_key(), stack.new_key()
    sign_in(page, mine)
    page.goto("/api-keys")
    other = page.context.new_page()
    other.goto("/sign-in")
    other.get_by_label("API key").fill(others)
    other.get_by_role("button", name="Sign in").click()
    expect(other.get_by_role("heading", name="Projects", exact=True)).to_be_visible()
    page.get_by_role("button", name="Revoke").first.click()
    expect(page.get_by_role("alert")).to_contain_text("You are account-")
    expect(page.locator("dialog[open]")).to_have_count(0)
    page.reload()
    page.get_by_role("button", name="Revoke").first.click()
    expect(page.locator("dialog[open]")).to_be_visible()


@pytest.mark.thorough
def test_without_scripts_a_form_survives_signing_out(browser: Browser, stack: Stack) -> None:
    project = Project.create(stack, Client(stack.api_url, stack.new_key()), name="shop")
    with opened(browser, stack.console_url, java_script_enabled=False) as plain:
        other = plain.context.new_page()
        name = plain.get_by_role("textbox", name="Name")
        sign_in(plain, project.client.key)
        plain.goto(f"/projects/{project.id}/rename")
        name.fill("typed before")
        other.goto("/")
        sign_out(other)
        plain.get_by_role("button", name="Rename").click()
        expect(plain.get_by_role("alert")).to_contain_text("You are not signed in")
        expect(name).to_have_value("typed before")
        other.get_by_label("API key").fill(project.client.key)
        other.get_by_role("button", name="Sign in").click()
        expect(other.get_by_role("heading", name="Projects", exact=True)).to_be_visible()
        plain.get_by_role("button", name="Rename").click()
        expect(plain.get_by_role("heading", name="typed before")).to_be_visible()


@pytest.mark.thorough
def test_a_hidden_page_does_not_listen(page: Page, shop: Project) -> None:
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
    # The page may have renewed once, for a change made before it was listening.
    idle(page, 2)
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
def test_webhook_pages_are_live(page: Page, stack: Stack) -> None:
    client = Client(stack.api_url, stack.new_key())
    sign_in(page, client.key)
    with page.expect_response(re.compile("/changes")):
        page.goto("/webhooks")
    expect(page.get_by_text("No webhooks yet")).to_be_visible()
    asked = {"url": "https://hooks.invalid/x", "description": "chat", "event_types": ["*"]}
    made = client.post("/webhooks", {"webhook": asked})["webhook"]
    row = page.locator(".webhooks tbody tr")
    expect(row).to_contain_text("hooks.invalid", timeout=SOON)
    page.goto(f"/webhooks/{made['id']}")
    mark(page)
    page.get_by_role("button", name="Send test event").click()
    expect(page.locator(".deliveries tbody tr")).to_have_count(1, timeout=SOON)
    page.get_by_role("button", name="Disable").click()
    expect(page.get_by_role("button", name="Enable")).to_be_focused()
    client.delete(f"/webhooks/{made['id']}")
    expect(page.locator("#main")).to_have_class(re.compile("gone"), timeout=SOON)
    assert_not_reloaded(page)


@pytest.mark.thorough
def test_an_element_that_changes_its_kind_changes_its_look(page: Page, stack: Stack) -> None:
    project = Project.create(stack, Client(stack.api_url, stack.new_key()), name="shop")
    free = project.new_branch_id(name="free")
    open_page(page, project, f"/branches/{free}")
    region = page.get_by_role("region", name="Endpoint")
    expect(region.locator(".empty")).to_be_visible()
    # Created elsewhere, so that it appears with a renewal, which is itself a request of htmx.
    project.done(project.create_endpoint(free))
    expect(region.locator(".perching")).to_be_visible(timeout=20_000)
    expect(region.locator(".empty")).to_have_count(0)
