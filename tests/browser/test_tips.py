"""What a title explains, without a mouse: at a tap, and by keyboard."""

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import opened
from tests.browser.looking import expect_accessible
from tests.browser.test_journey import sign_in
from tests.support.project import Project
from tests.support.stack import Stack

EXPLAINED = "Compute unit: 1 vCPU and 4 GB of memory"


@pytest.fixture(scope="module")
def shop(stack: Stack) -> Project:
    return Project.create(stack, stack.client(), name="shop")


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
