"""A project's pages in a real browser: copying, searching, switching, and menus at every width."""

import json
import re

import psycopg
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Elsewhere, copied, opened
from tests.browser.looking import expect_accessible, expect_fits
from tests.browser.test_journey import sign_in, sign_out
from tests.support.project import Project
from tests.support.stack import Stack

LONG = "preview/" + "a-name-without-an-end-" * 6


@pytest.fixture(scope="module")
def shop(stack: Stack) -> Project:
    project = Project.create(stack, stack.client(), name="shop")
    body = {"branch": {"name": LONG}, "endpoints": [{"type": "read_write"}]}
    project.client.finish(project.client.post(f"{project.path}/branches", body))
    return project


@pytest.fixture
def pages(page: Page, shop: Project) -> Page:
    sign_in(page, shop.client.key)
    return page


def endpoint_url(shop: Project) -> str:
    return f"/projects/{shop.id}/endpoints/{shop.endpoint_id}"


def assert_connects(url: str) -> None:
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_copied_string_with_a_hidden_password_connects(pages: Page, shop: Project) -> None:
    pages.goto(endpoint_url(shop))
    string = pages.locator(".string code")
    expect(string).to_contain_text("********")
    pages.locator(".copy-string").click()
    url = copied(pages)
    assert "****" not in url
    assert_connects(url)
    expect(string).to_contain_text("********")


@pytest.mark.thorough
def test_connect_is_on_the_projects_page_too(pages: Page, shop: Project) -> None:
    pages.goto(f"/projects/{shop.id}")
    pages.get_by_role("button", name="Connect…").click()
    dialog = pages.locator("dialog[open]")
    expect(dialog.locator(".string")).to_be_visible()
    dialog.get_by_label("For").select_option("psql")
    expect(dialog.locator(".string code")).to_contain_text("psql '")
    dialog.get_by_label("For").select_option("url")
    expect(dialog.locator(".string code")).not_to_contain_text("psql '")
    expect_accessible(pages)
    dialog.locator(".copy-string").click()
    assert_connects(copied(pages))
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)


@pytest.mark.thorough
def test_without_a_clipboard_the_text_is_shown_selected(pages: Page, shop: Project) -> None:
    pages.add_init_script(
        "Object.defineProperty(navigator, 'clipboard', {value: undefined});"
        "document.execCommand = () => false;"
    )
    pages.goto(endpoint_url(shop))
    pages.locator(".copy-string").click()
    field = pages.locator(".copy-by-hand textarea")
    expect(field).to_be_focused()
    expect(field).to_have_value(re.compile("^postgresql://neondb_owner:[^*]+@"))
    selected = "one => one.value.slice(one.selectionStart, one.selectionEnd)"
    assert field.evaluate(selected) == field.input_value()
    pages.keyboard.press("Escape")
    expect(field).to_have_count(0)
    expect(pages.locator(".copy-string")).to_be_focused()


@pytest.mark.thorough
def test_after_signing_out_elsewhere_copying_reports_an_error(pages: Page, shop: Project) -> None:
    pages.goto(endpoint_url(shop))
    expect(pages.locator(".string")).to_be_visible()
    other = pages.context.new_page()
    other.goto("/")
    sign_out(other)
    pages.locator(".copy-string").click()
    expect(pages.locator(".notice.failure")).to_contain_text("signed out")
    expect(pages.locator("#announce")).not_to_have_text("Copied")


@pytest.mark.thorough
def test_a_refused_setting_is_reported_beside_its_field(pages: Page, shop: Project) -> None:
    pages.goto(endpoint_url(shop))
    pages.locator("#edit-settings").click()
    dialog = pages.locator("dialog[open]")
    for typed, words in {
        "work_mem = 9TB": "work_mem: must be from 64kB to",
        "timezone = Nowhere/City": "timezone: must be the name of a time zone",
        "no_such = 1": "no_such: Postgres has no such setting",
    }.items():
        dialog.get_by_label("Postgres settings").fill(typed)
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.locator(".field.pg_settings").get_by_role("alert")).to_contain_text(words)
        expect(dialog.get_by_label("Postgres settings")).to_have_value(typed)
    assert shop.endpoint()["settings"]["pg_settings"] == {}


@pytest.mark.thorough
def test_suspending_asks_for_confirmation(pages: Page, shop: Project) -> None:
    shop.start()
    pages.goto(endpoint_url(shop))
    pages.get_by_role("button", name="Suspend").click()
    dialog = pages.locator("dialog[open]")
    expect(dialog).to_contain_text("Open connections are closed")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    assert shop.is_running()
    pages.get_by_role("button", name="Suspend").click()
    dialog.get_by_role("button", name="Suspend").click()
    expect(dialog).to_have_count(0)
    expect(pages.locator("#live .about")).to_contain_text("Idle")
    # The activity has been updated too, without a reload.
    expect(pages.locator(".turns tbody tr").first).to_contain_text("Suspended")


@pytest.mark.thorough
def test_typing_filters_the_postgres_settings(pages: Page, shop: Project) -> None:
    pages.goto(f"{endpoint_url(shop)}/pg-settings")
    pages.keyboard.press("/")
    search = pages.get_by_role("searchbox")
    expect(search).to_be_focused()
    search.press_sequentially("work_mem")
    rows = pages.locator(".pg-settings tbody tr")
    expect(rows.first).to_contain_text("work_mem")
    expect(rows).not_to_have_count(25)
    expect(pages).to_have_url(re.compile(r"search=work_mem"))
    expect(search).to_be_focused()
    pages.reload()
    expect(search).to_have_value("work_mem")
    expect(rows.first).to_contain_text("work_mem")


@pytest.mark.thorough
def test_the_switcher_leads_to_another_project(pages: Page, shop: Project) -> None:
    shop.client.finish(shop.client.post("/projects", {"project": {"name": "the blog"}}))
    pages.goto(f"/projects/{shop.id}")
    pages.locator("#switch-project").click()
    dialog = pages.locator("dialog[open]")
    dialog.get_by_role("searchbox").fill("blog")
    expect(dialog.locator(".switcher a")).to_have_count(1)
    dialog.get_by_role("link", name="the blog").click()
    expect(pages.get_by_role("heading", name="the blog", level=1)).to_be_visible()


@pytest.mark.thorough
def test_the_menu_is_reachable_at_every_width(pages: Page, shop: Project) -> None:
    pages.goto(f"/projects/{shop.id}")
    for width in (320, 821, 1024, 1100):
        pages.set_viewport_size({"width": width, "height": 900})
        menu = pages.locator(".endpoints details.menu").first
        menu.locator("summary").click()
        delete = menu.get_by_role("link", name="Delete")
        expect(delete).to_be_in_viewport()
        pages.keyboard.press("Escape")


def crowded(body: bytes) -> bytes:
    """Return an answer of the API with forty more branches, and an endpoint on every second one."""
    data = json.loads(body) if body else {}
    if not isinstance(data, dict):
        return body
    for branch in data.get("branches", [])[:1]:
        copies = ({"id": f"br-{n}", "name": f"branch-{n}", "default": False} for n in range(40))
        data["branches"] += [branch | {"parent_id": branch["id"]} | copy for copy in copies]
    for endpoint in data.get("endpoints", [])[:1]:
        copies = ({"id": f"ep-{n}", "branch_id": f"br-{2 * n}"} for n in range(20))
        data["endpoints"] += [endpoint | copy for copy in copies]
    return json.dumps(data).encode()


@pytest.mark.thorough
def test_pages_stay_short_with_forty_branches(elsewhere: Elsewhere, shop: Project) -> None:
    page = elsewhere.page
    sign_in(page, shop.client.key)
    elsewhere.relay.twists = crowded
    for path in ("", "/branches", "/operations"):
        page.goto(f"/projects/{shop.id}{path}")
        for width, most in ((1280, 2_400), (390, 5_200)):
            page.set_viewport_size({"width": width, "height": 900})
            height = page.evaluate("document.documentElement.scrollHeight")
            assert height <= most, (path, width, height)
        page.set_viewport_size({"width": 1280, "height": 900})


@pytest.mark.thorough
def test_connecting_right_after_creating(pages: Page) -> None:
    """For a project, and from the page of a branch."""
    pages.goto("/")
    pages.get_by_role("button", name="Create project").click()
    dialog = pages.locator("dialog[open]")
    dialog.get_by_label("Name").fill("fresh")
    dialog.get_by_role("button", name="Create project").click()
    expect(pages.get_by_role("heading", name="fresh", level=1)).to_be_visible()
    # Its address is shown at once. A client that connects before the start is done waits.
    pages.locator(".copy-string").click()
    assert_connects(copied(pages))
    pages.get_by_role("navigation", name="Project").get_by_role("link", name="Branches").click()
    pages.get_by_role("rowheader").get_by_role("link", name="main").click()
    pages.get_by_role("button", name="Connect").click()
    pages.locator(".copy-string").click()
    assert_connects(copied(pages))


def test_a_long_id_fits_beside_the_name_on_the_narrowest_phone(pages: Page, shop: Project) -> None:
    pages.set_viewport_size({"width": 320, "height": 900})
    pages.goto(f"/projects/{shop.id}/settings")
    pages.locator(".project-head .id code").evaluate(
        "one => { one.textContent = 'fortunate-starfish-16906386' }"
    )
    expect_fits(pages, [320])


def test_times_are_typed_and_kept_in_the_zone_of_the_page(
    browser: Browser, stack: Stack, shop: Project
) -> None:
    with opened(browser, stack.console_url, timezone_id="Asia/Tokyo") as page:
        sign_in(page, shop.client.key)
        page.goto(f"/projects/{shop.id}/operations")
        page.locator("summary", has_text="Filter").click()
        since = page.get_by_label("Since (Asia/Tokyo)")
        since.fill("2020-01-31T14:03")
        # The address means the same to a reader in another zone.
        expect(page).to_have_url(re.compile(r"since=2020-01-31T05%3A03%3A00Z"))
        page.reload()
        expect(since).to_have_value("2020-01-31T14:03")
        page.goto("/api-keys/new")
        page.get_by_label("Name").fill("of a day")
        page.get_by_label("Expires after (Asia/Tokyo)").fill("2999-01-31")
        page.get_by_role("button", name="Show as curl").click()
        expect(page.locator(".curl pre")).to_contain_text("2999-01-31T15:00:00Z")
