"""A project's pages in a real browser: copying, narrow phones, time zones, and what titles tell."""

import re

import psycopg
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import copied, opened
from tests.browser.looking import expect_accessible, expect_fits
from tests.browser.test_journey import sign_in
from tests.support.project import Project
from tests.support.stack import Stack


@pytest.fixture(scope="module")
def shop(stack: Stack) -> Project:
    return Project.create(stack, stack.client(), name="shop")


@pytest.fixture
def pages(page: Page, shop: Project) -> Page:
    sign_in(page, shop.client.key)
    return page


def endpoint_url(shop: Project) -> str:
    return f"/projects/{shop.id}/endpoints/{shop.endpoint_id}"


def test_a_copied_string_with_a_hidden_password_connects(pages: Page, shop: Project) -> None:
    pages.goto(endpoint_url(shop))
    string = pages.locator(".string code")
    expect(string).to_contain_text("********")
    pages.locator(".copy-string").click()
    url = copied(pages)
    assert "****" not in url
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    expect(string).to_contain_text("********")


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


EXPLAINED = "Compute unit: 1 vCPU and 4 GB of memory"


def test_a_tap_explains_and_the_next_one_hides_it(
    browser: Browser, stack: Stack, shop: Project
) -> None:
    with opened(browser, stack.console_url, has_touch=True) as page:
        page.set_viewport_size({"width": 390, "height": 844})
        sign_in(page, shop.client.key)
        page.goto(shop.path)
        tip = page.locator("#tip")
        expect(tip).to_be_attached()
        page.locator("abbr").first.tap()
        expect(tip).to_have_text(EXPLAINED)
        expect(tip).to_be_in_viewport(ratio=1)
        page.get_by_role("heading", name="Endpoints").tap()
        expect(tip).to_be_hidden()


def test_the_focus_explains(page: Page, shop: Project) -> None:
    sign_in(page, shop.client.key)
    page.goto(f"{shop.path}/endpoints/{shop.endpoint_id}")
    tip, edit = page.locator("#tip"), page.get_by_role("link", name="Edit the compute size")
    expect(tip).to_be_attached()
    edit.focus()
    page.keyboard.press("Shift+Tab")
    expect(tip).to_have_text(EXPLAINED)
    expect_accessible(page)
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_label("Minimum size")).to_be_visible()
