"""Sessions that end because they are idle, and sign-ins to several servers."""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import opened
from tests.browser.looking import expect_accessible
from tests.browser.test_journey import assert_not_reloaded, mark, sign_in
from tests.support.another_console import another_console
from tests.support.client import Client
from tests.support.project import Project
from tests.support.relay import relay
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
def test_the_menu_switches_between_servers(browser: Browser, stack: Stack) -> None:
    """Another address of the same service acts as the other server."""
    here = Project.create(stack, stack.client(), wait=False, name="Nest here")
    there = Project.create(stack, stack.client(), wait=False, name="Nest there")
    with (
        relay(stack.api_url) as staging,
        another_console(stack.api_url, PERCH_CONSOLE_SERVERS=f"staging={staging.url}") as url,
        opened(browser, url) as page,
    ):
        menu = page.locator("#menu-account")
        sign_in(page, here.client.key)
        assert not staging.asked
        menu.locator("summary").click()
        menu.get_by_role("link", name="Sign in with another key").click()
        page.get_by_label("Server").select_option("staging")
        page.get_by_label("API key").fill(there.client.key)
        page.get_by_role("button", name="Sign in").click()
        expect_projects_of(page, there, not_of=here)
        assert staging.asked

        menu.locator("summary").click()
        menu.get_by_role("button", name=f"Switch to {name_of(here.client)}").click()
        expect_projects_of(page, here, not_of=there)
        menu.locator("summary").click()
        expect_accessible(page)
        back = menu.get_by_role("button", name=f"Switch to {name_of(there.client)}")
        expect(back).to_contain_text("staging")
        back.click()
        expect_projects_of(page, there, not_of=here)
        menu.locator("summary").click()
        expect(menu.locator("li").first).to_contain_text("staging")


def name_of(client: Client) -> str:
    return str(client.get("/users/me")["login"])


def expect_projects_of(page: Page, project: Project, *, not_of: Project) -> None:
    """Check each page that shows projects, once the menu shows the right account."""
    expect(page.locator("#menu-account .who")).to_have_text(name_of(project.client))
    for address in ("/", "/activity", "/go"):
        page.goto(address)
        expect(page.locator("#main")).to_contain_text(project.created["project"]["name"])
        expect(page.locator("#main")).not_to_contain_text(not_of.created["project"]["name"])
