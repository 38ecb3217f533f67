"""Sessions that end: in another tab, or because they are idle."""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import opened
from tests.browser.looking import expect_accessible
from tests.browser.open_pages import open_page
from tests.browser.test_journey import assert_not_reloaded, mark, sign_in, sign_out
from tests.support.another_console import another_console
from tests.support.project import Project
from tests.support.stack import Stack

# Seconds that a session may be idle: more than any page takes, also on a busy machine.
IDLE = 12


@pytest.mark.thorough
def test_an_idle_session_ends_and_typed_text_is_kept(browser: Browser, stack: Stack) -> None:
    client = stack.client()
    with (
        another_console(stack.api_url, PERCH_SESSION_IDLE_HOURS=str(IDLE / 3600)) as url,
        opened(browser, url) as page,
    ):
        sign_in(page, client.key)
        page.get_by_role("button", name="Create your first project").click()
        dialog = page.locator("dialog[open]")
        name = dialog.get_by_label("Name")
        name.fill("typed before")
        mark(page)
        # The page keeps listening meanwhile; this does not extend the session.
        page.wait_for_timeout((IDLE + 1) * 1000)

        create = dialog.get_by_role("button", name="Create project")
        create.click()
        expect(dialog.get_by_role("alert")).to_contain_text("You are not signed in")
        expect(name).to_have_value("typed before")
        expect_accessible(page)
        assert client.get("/projects")["projects"] == []
        other = page.context.new_page()
        other.goto("/activity")
        expect(other.get_by_role("heading", name="Sign in to Perch")).to_be_visible()

        # The user continues on the same page.
        other.get_by_label("API key").fill(client.key)
        other.get_by_role("button", name="Sign in").click()
        expect(other).to_have_url(re.compile("/activity$"))
        assert_not_reloaded(page)
        create.click()
        expect(page.get_by_role("heading", name="typed before")).to_be_visible()


@pytest.mark.thorough
def test_a_page_stays_when_the_user_signs_out_elsewhere(page: Page, stack: Stack) -> None:
    project = Project.create(stack, stack.client(), name="shop")
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
