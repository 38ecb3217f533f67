"""Branches in a real browser: their picture, passwords, and times of expiry."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.looking import expect_accessible, focused
from tests.browser.test_journey import expect_quiet, sign_in
from tests.browser.world import LONG
from tests.support.project import Project
from tests.support.stack import Stack


class Grove(Project):
    """A project with several levels of branches, which have usual names."""

    dev_id: str
    deep_id: str
    snapshot_id: str

    @property
    def url(self) -> str:
        return f"{self.path}/branches"

    def page_of(self, branch_id: str) -> str:
        return f"{self.url}/{branch_id}"


@pytest.fixture(scope="module")
def grove(stack: Stack) -> Iterator[Grove]:
    made = Grove.create(stack, stack.client(), name="grove")
    made.dev_id = made.new_branch_id(name="dev", parent_id=made.branch_id)
    made.create_endpoint(made.dev_id)
    made.deep_id = made.dev_id
    for level in range(1, 8):
        made.deep_id = made.new_branch_id(name=f"level {level}", parent_id=made.deep_id)
    made.new_branch_id(name=LONG, parent_id=made.dev_id, expires_at="2999-01-31T12:00:00Z")
    made.new_branch_id(name="safe", parent_id=made.branch_id, protected=True)
    taken = made.done(made.client.post(made.branch_path(made.dev_id, "/snapshot"), {"name": "old"}))
    made.snapshot_id = taken["snapshot"]["id"]
    yield made
    made.client.call("DELETE", made.path)


@pytest.fixture
def at_grove(page: Page, grove: Grove) -> Page:
    sign_in(page, grove.client.key)
    return page


def test_the_picture_links_to_its_branches_and_is_not_in_the_tab_order(
    at_grove: Page, grove: Grove
) -> None:
    page = at_grove
    page.goto(grove.url)
    picture = page.locator(".tree-picture.wide")
    expect(picture).to_be_visible()
    expect(page.locator("figcaption")).to_have_text(
        "11 branches, 9 levels deep: 2 active, 9 without an endpoint."
    )
    assert (
        page.evaluate("document.querySelectorAll('.aviary a:not([tabindex=\"-1\"])').length") == 0
    )
    picture.get_by_text("dev", exact=True).click()
    expect(page.get_by_role("heading", name="dev")).to_be_visible()
    # On a narrow screen, another drawing shows the same.
    page.set_viewport_size({"width": 390, "height": 900})
    page.goto(grove.url)
    expect(picture).to_be_hidden()
    expect(page.locator(".tree-picture.narrow")).to_be_visible()


@pytest.mark.thorough
def test_a_password_shown_once_stays_until_the_reader_presses_done(
    at_grove: Page, grove: Grove
) -> None:
    page = at_grove
    dialog = page.locator("dialog[open]")
    page.goto(grove.page_of(grove.dev_id))
    page.get_by_role("button", name="Create role").click()
    dialog.get_by_label("Name").fill("reporting")
    dialog.get_by_role("button", name="Create role").click()
    secret = dialog.locator(".secret code")
    expect(secret).to_be_visible()
    password = secret.inner_text()
    for _ in range(3):
        page.keyboard.press("Escape")
    assert focused(page) == "Done"
    expect(dialog.get_by_text("Copy it, then press Done.")).to_be_visible()
    page.mouse.click(5, 5)
    expect(secret).to_have_text(password)
    expect_accessible(page)
    dialog.get_by_role("button", name="Done").click()
    expect(page.locator("#dialog")).to_be_empty()
    expect(page.locator(".catalog", has_text="reporting")).to_be_visible()
    assert password not in page.content()

    # Escape closes a dialog with a password that can be shown again.
    page.get_by_role("button", name="Reveal password of reporting").click()
    expect(secret).to_have_text(password)
    page.keyboard.press("Escape")
    # The browser closes a dialog a moment before the page is notified and empties it.
    expect(page.locator("#dialog")).to_be_empty()
    assert password not in page.content()
    expect_quiet(page)

    page.get_by_label("More actions for role reporting").click()
    page.get_by_role("link", name="Delete…").locator("visible=true").click()
    dialog.get_by_role("button", name="Delete role").click()
    expect(dialog).to_have_count(0)
    expect(page.locator(".catalog", has_text="reporting")).to_have_count(0)
    expect_quiet(page)


@pytest.mark.thorough
def test_a_time_is_required_only_if_the_choice_needs_one(at_grove: Page, grove: Grove) -> None:
    page = at_grove
    dialog = page.locator("dialog[open]")
    page.goto(grove.page_of(grove.deep_id))
    page.locator(f"[id='expiry-{grove.deep_id}']").click()
    until = dialog.get_by_label("Time")
    expect(until).to_be_hidden()
    dialog.get_by_label("Expires").select_option("at")
    until.fill("2999-01-31T12:00")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)
    facts = page.locator(".facts")
    expect(facts).to_contain_text("2999-01-31")
    page.get_by_role("button", name="Turn on").click()
    expect(page.locator(".notice.failure")).to_contain_text("The branch expires")
    expect(page.locator(".notice.failure")).not_to_contain_text("expires_at")
    page.locator(f"[id='expiry-{grove.deep_id}']").click()
    dialog.get_by_label("Expires").select_option("")
    dialog.get_by_role("button", name="Save").click()
    expect(facts).to_contain_text("Never")
