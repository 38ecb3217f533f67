"""The bytes that pages cost over the wire, in a real browser; that no secret is compressed; and
that bundling the stylesheet loses no rule."""

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import opened
from tests.browser.looking import wire
from tests.browser.open_pages import idle
from tests.browser.test_journey import sign_in
from tests.support.project import Project
from tests.support.stack import ROOT, Stack

# Bytes over the wire, headers included. Django adds up to 100 at random to each compressed page,
# so that its length tells less.
FIRST_PAGE, LATER_PAGE = 44_600, 12_000
# The page, its style, script and icon, and how to connect; the tree has a style.
MOST_REQUESTS = 6


@pytest.fixture(scope="module")
def shop(stack: Stack) -> Project:
    made = Project.create(stack, stack.client(), name="shop")
    for number in range(5):
        made.new_branch_id(name=f"branch-{number}")
    return made


def test_a_first_page_is_small_and_a_later_one_smaller(
    browser: Browser, stack: Stack, shop: Project
) -> None:
    with opened(browser, stack.console_url) as page:
        sign_in(page, shop.client.key)
        state = page.context.storage_state()
    for path in ("/", f"/projects/{shop.id}", f"/projects/{shop.id}/branches"):
        with opened(browser, stack.console_url, storage_state=state) as page:
            with wire(page) as first:
                page.goto(path)
                page.wait_for_load_state("load")
                idle(page, 1)
            assert first.bytes <= FIRST_PAGE, first.answers
            assert len(first.answers) <= MOST_REQUESTS, first.answers
            with wire(page) as later:
                page.goto(f"/projects/{shop.id}/operations")
                idle(page, 1)
            assert later.bytes <= LATER_PAGE, later.answers


@pytest.mark.thorough
def test_answers_are_compressed_unless_they_hold_a_secret(
    browser: Browser, stack: Stack, shop: Project
) -> None:
    with opened(browser, stack.console_url) as page:
        sign_in(page, shop.client.key)
        answer = page.goto(f"/projects/{shop.id}")
        assert answer
        assert answer.header_value("content-encoding") == "gzip"
        page.goto("/api-keys/new")
        page.get_by_role("textbox", name="Name").fill("deploy")
        with page.expect_response(lambda one: one.request.method == "POST") as made:
            page.get_by_role("button", name="Create key").click()
        expect(page.locator(".secret")).to_be_visible()
        assert made.value.header_value("content-encoding") is None


STATIC = ROOT / "static"
FIRST = ["vendor/pico.min.css", "theme.css", "console.css"]
RULES = """text => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(text);
  // Browsers keep the value of a custom property exactly as it was written, with its spaces.
  return Array.from(sheet.cssRules, rule => rule.cssText.replace(/, /g, ","));
}"""


def test_the_stylesheet_has_the_rules_of_its_sources(page: Page) -> None:
    page.goto("/sign-in")
    address = page.locator("link[rel=stylesheet]").get_attribute("href")
    small = page.request.get(str(address)).text()
    rest = sorted(path.name for path in STATIC.glob("*.css") if path.name not in FIRST)
    sources = [page.evaluate(RULES, (STATIC / name).read_text()) for name in [*FIRST, *rest]]
    assert page.evaluate(RULES, small) == [rule for rules in sources for rule in rules]
    # The licence of another project's code stays with that code.
    assert "Pico CSS" in small[:200]
    assert "Licensed under MIT" in small[:200]
