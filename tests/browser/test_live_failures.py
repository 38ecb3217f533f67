"""Open pages during failures of the connection to the console, and of the API."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Elsewhere
from tests.browser.looking import cut_off
from tests.browser.open_pages import idle, open_page, settled
from tests.browser.test_journey import assert_not_reloaded
from tests.support.project import Project
from tests.support.stack import Stack


@pytest.fixture(scope="module")
def shop(stack: Stack) -> Project:
    return Project.create(stack, stack.client(), name="shop")


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
