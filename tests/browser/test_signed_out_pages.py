"""Open pages whose user has signed out, or in again, in another tab."""

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import opened
from tests.browser.open_pages import open_page
from tests.browser.test_journey import assert_not_reloaded, sign_in, sign_out
from tests.support.project import Project
from tests.support.stack import Stack


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


@pytest.mark.thorough
def test_a_form_from_before_a_new_sign_in_asks_for_confirmation(page: Page, stack: Stack) -> None:
    page_of, anew = stack.new_key(), stack.new_key()
    sign_in(page, page_of)
    page.goto("/new-project")
    name = page.get_by_role("textbox", name="Name")
    name.fill("typed before")
    other = page.context.new_page()
    other.goto("/")
    sign_out(other)
    sign_in(other, anew)
    page.get_by_role("button", name="Create project").click()
    # Another user may be signed in now.
    expect(page.get_by_role("alert")).to_contain_text("You have signed in again")
    expect(name).to_have_value("typed before")
    page.get_by_role("button", name="Create project").click()
    expect(page.get_by_role("heading", name="typed before")).to_be_visible()


@pytest.mark.thorough
def test_a_page_of_a_previous_sign_in_changes_nothing(page: Page, stack: Stack) -> None:
    mine, others = stack.new_key(), stack.new_key()
    sign_in(page, mine)
    page.goto("/api-keys")
    other = page.context.new_page()
    other.goto("/sign-in")
    other.get_by_label("API key").fill(others)
    other.get_by_role("button", name="Sign in").click()
    expect(other.get_by_role("heading", name="Projects", exact=True)).to_be_visible()
    page.get_by_role("button", name="Revoke").first.click()
    expect(page.get_by_role("alert")).to_contain_text("You are account-")
    expect(page.locator("dialog[open]")).to_have_count(0)
    page.reload()
    page.get_by_role("button", name="Revoke").first.click()
    expect(page.locator("dialog[open]")).to_be_visible()


@pytest.mark.thorough
def test_without_scripts_a_form_survives_signing_out(browser: Browser, stack: Stack) -> None:
    project = Project.create(stack, stack.client(), name="shop")
    with opened(browser, stack.console_url, java_script_enabled=False) as plain:
        other = plain.context.new_page()
        name = plain.get_by_role("textbox", name="Name")
        sign_in(plain, project.client.key)
        plain.goto(f"/projects/{project.id}/rename")
        name.fill("typed before")
        other.goto("/")
        sign_out(other)
        plain.get_by_role("button", name="Rename").click()
        expect(plain.get_by_role("alert")).to_contain_text("You are not signed in")
        expect(name).to_have_value("typed before")
        other.get_by_label("API key").fill(project.client.key)
        other.get_by_role("button", name="Sign in").click()
        expect(other.get_by_role("heading", name="Projects", exact=True)).to_be_visible()
        plain.get_by_role("button", name="Rename").click()
        expect(plain.get_by_role("heading", name="typed before")).to_be_visible()
