"""What tests of open pages do: open a page, let time pass, and wait for the answers to its
requests."""

from playwright.sync_api import Page, expect

from tests.browser.test_journey import mark, sign_in
from tests.support.project import Project

# Milliseconds within which a change made elsewhere appears.
SOON = 5_000


def open_page(page: Page, shop: Project, path: str = "") -> None:
    """Open the project's page, or one below it, and wait until it is complete."""
    sign_in(page, shop.client.key)
    page.goto(f"/projects/{shop.id}{path}")
    expect(page.locator("[hx-trigger=load]")).to_have_count(0)
    mark(page)


def idle(page: Page, seconds: float) -> None:
    page.wait_for_function(
        "([start, ms]) => performance.now() - start > ms",
        arg=[page.evaluate("performance.now()"), seconds * 1000],
    )


def settled(page: Page) -> None:
    """Wait until every request of the page has its answer."""
    expect(page.locator("body.htmx-request, .htmx-request")).to_have_count(0)
