"""The charts of an endpoint in a real browser: chosen times, tables, renewal."""

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Elsewhere
from tests.browser.looking import expect_accessible, expect_fits
from tests.browser.test_journey import sign_in
from tests.support.busy_metrics import busy
from tests.support.project import Project
from tests.support.stack import Stack


@pytest.fixture(scope="module")
def shop(stack: Stack) -> Project:
    return Project.create(stack, stack.client(), name="shop")


def _painted(page: Page, selector: str) -> bool:
    """Return whether the shape has a size and a colour."""
    return bool(
        page.locator(selector).first.evaluate(
            """(one) => {
                const box = one.getBoundingClientRect(), style = getComputedStyle(one);
                return box.width > 1 && (style.fill !== "none" || style.stroke !== "none");
            }"""
        )
    )


def test_an_endpoint_is_monitored(elsewhere: Elsewhere, shop: Project) -> None:
    page = elsewhere.page
    elsewhere.relay.twists = busy
    sign_in(page, shop.client.key)
    page.goto(f"/projects/{shop.id}/endpoints/{shop.endpoint_id}")
    page.get_by_role("link", name="Monitoring").click()
    expect(page.locator(".chart")).to_have_count(8)
    page.get_by_role("link", name="24 h").click()
    expect(page.get_by_role("link", name="24 h")).to_have_attribute("aria-current", "page")
    picture = page.get_by_role("img", name="Memory in the last 24 hours: At most")
    expect(picture).to_be_visible()
    assert _painted(page, "#chart-connections ~ .plot .line-3")
    assert _painted(page, "#chart-memory ~ .plot .area")
    assert _painted(page, ".plot .active-times .on")
    # The activity lies beneath the lines, over the same width.
    lines, awake = (page.locator(f".plot > .{name}").first.bounding_box() for name in
                    ("lines", "active-times"))  # fmt: skip
    assert lines
    assert awake
    assert (lines["x"], lines["width"]) == (awake["x"], awake["width"])
    assert awake["y"] >= lines["y"] + lines["height"]
    table = page.locator("#table-rows")
    table.locator("summary").click()
    assert table.get_by_role("row").count() > 60
    expect_accessible(page)
    expect_fits(page, (320, 390, 768, 1280))
