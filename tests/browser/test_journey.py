"""What a new user does with Perch on the first day, in a real browser, from sign-in to clean-up."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.stack import Stack

QUIET = "No operation in progress"


def sign_in(page: Page, key: str) -> None:
    page.goto("/")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Projects", exact=True)).to_be_visible()


def sign_out(page: Page) -> None:
    page.locator("#menu-account summary").click()
    page.get_by_role("button", name="Sign out", exact=True).click()
    expect(page.get_by_label("API key")).to_be_visible()


def mark(page: Page) -> None:
    """Leave a mark in the page, which a reload would remove."""
    page.evaluate("window.notReloaded = true")


def assert_not_reloaded(page: Page) -> None:
    assert page.evaluate("window.notReloaded") is True


def expect_quiet(page: Page) -> None:
    """Wait until the live region says that no operation is in progress, and polls for its mark."""
    expect(page.locator("#poll")).to_have_text(re.compile(QUIET), timeout=30_000)
    # A branch's page is read until its history begins, with the worker's next round.
    expect(page.locator("#live")).to_have_attribute("data-mark", re.compile("."), timeout=30_000)


def hide(page: Page) -> None:
    """Hide the page, as when the user looks at another tab."""
    page.evaluate(
        """() => {
            Object.defineProperty(document, "hidden", {value: true, configurable: true});
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
    )


def open_tab(page: Page, name: str) -> None:
    page.get_by_role("navigation", name="Project").get_by_role("link", name=name).click()


def open_menu(page: Page, endpoint_id: str) -> None:
    page.get_by_label(f"More actions for {endpoint_id}").click()


def endpoint_row(page: Page, endpoint_id: str) -> Locator:
    return page.locator(".endpoints tbody tr").filter(has_text=endpoint_id)


@pytest.fixture
def signed_in(page: Page, stack: Stack) -> Page:
    sign_in(page, stack.new_key())
    return page


def test_a_first_day_with_perch(signed_in: Page) -> None:
    page = signed_in
    dialog = page.locator("dialog[open]")

    # Create a project, with its first branch and endpoint.
    page.get_by_role("button", name="Create your first project").click()
    dialog.get_by_label("Name").fill("shop")
    dialog.get_by_role("button", name="Create project").click()
    expect(page.get_by_role("heading", name="shop")).to_be_visible()
    expect_quiet(page)
    expect(page.locator(".endpoints tbody tr")).to_have_count(1)
    expect(page.locator(".endpoints tbody tr")).to_contain_text("Active")

    # Create a branch without an endpoint, and an endpoint on it, from the pages.
    open_tab(page, "Branches")
    page.get_by_role("button", name="Create branch").click()
    dialog.get_by_label("Name").fill("dev")
    dialog.get_by_label("Create endpoint").uncheck()
    dialog.get_by_role("button", name="Create branch").click()
    expect(page.get_by_role("heading", name="dev")).to_be_visible()
    expect_quiet(page)
    page.get_by_role("button", name="Create endpoint").click()
    dialog.get_by_role("button", name="Create endpoint").click()
    perching = page.locator(".perching")
    expect(perching).to_contain_text("Active", timeout=20_000)
    expect_quiet(page)
    endpoint_id = perching.locator(".lead code").first.inner_text()

    # Create another branch, and move the endpoint there.
    page.get_by_role("link", name="Branches").click()
    expect(page.locator(".branches tbody tr")).to_have_count(2)
    page.get_by_role("button", name="Create branch").click()
    dialog.get_by_label("Name").fill("preview")
    dialog.get_by_label("Create endpoint").uncheck()
    dialog.get_by_role("button", name="Create branch").click()
    expect(page.get_by_role("heading", name="preview")).to_be_visible()
    expect_quiet(page)
    page.get_by_role("link", name="Branches").click()
    expect(page.locator(".branches tbody tr")).to_have_count(3)
    open_tab(page, "Endpoints")
    mark(page)
    open_menu(page, endpoint_id)
    page.get_by_role("link", name="Reassign to another branch").click()
    expect(dialog.locator("select option")).to_have_count(1)
    dialog.get_by_role("button", name="Reassign").click()
    row = endpoint_row(page, endpoint_id)
    expect(row).to_contain_text("preview")
    expect_quiet(page)
    expect(row).to_contain_text("Idle")

    # Pooling. Without PgBouncer, the page gives the reason.
    open_menu(page, endpoint_id)
    page.get_by_role("button", name="Pool all connections").click()
    failure = page.locator(".notice.failure")
    expect(row.get_by_role("cell", name="All connections", exact=True).or_(failure)).to_be_visible()
    if failure.count():
        expect(failure).to_contain_text(re.compile("pgbouncer", re.IGNORECASE))
        failure.get_by_label("Dismiss").click()
    expect_quiet(page)

    # Start and suspend.
    row.get_by_role("button", name="Start").click()
    expect(row).to_contain_text("Active")
    expect_quiet(page)
    row.get_by_role("button", name="Suspend").click()
    dialog.get_by_role("button", name="Suspend").click()
    expect(row).to_contain_text("Idle")
    expect_quiet(page)

    # Disable it, and enable it again.
    open_menu(page, endpoint_id)
    page.get_by_role("link", name="Disable").click()
    dialog.get_by_role("button", name="Disable").click()
    expect(row).to_contain_text("Stopped")
    expect_quiet(page)
    row.get_by_role("button", name="Enable").click()
    expect(row.get_by_role("button", name="Start")).to_be_visible()
    expect_quiet(page)

    # Delete it: possible only once its id has been typed.
    open_menu(page, endpoint_id)
    page.locator(f"[id='delete-{endpoint_id}']").click()
    button = dialog.get_by_role("button", name="Delete endpoint")
    expect(button).to_be_disabled()
    dialog.get_by_label("Type its id to confirm").fill(endpoint_id)
    expect(button).to_be_enabled()
    button.click()
    expect(page.locator(".endpoints tbody tr")).to_have_count(1)
    assert_not_reloaded(page)

    # Every operation, with what was requested, its duration and its outcome.
    open_tab(page, "Operations")
    rows = page.locator(".runs tbody tr")
    titles = rows.locator(".lead > a").all_inner_texts()
    assert titles[-1] == "Create the project with branch main"
    assert {"Create branch dev", "Create branch preview"} <= set(titles)
    assert {f"{verb} endpoint {endpoint_id}" for verb in ("Start", "Suspend")} <= set(titles)
    assert f"Change endpoint {endpoint_id}: branch" in titles
    for outcome in rows.locator(".status").all_inner_texts():
        assert outcome.strip() == "OK"
    for duration in rows.locator(".took").all_inner_texts():
        assert re.fullmatch(r"[\d.]+ (ms|s)", duration.strip())
    rows.locator(".lead > a").first.click()
    expect(page.locator(".facts")).to_contain_text("Started")
    expect(page.locator(".facts")).to_contain_text("Duration")

    # Delete the project.
    page.get_by_role("link", name="shop").click()
    open_tab(page, "Settings")
    project_id = page.locator(".project-head .id code").first.inner_text()
    page.get_by_role("button", name="Delete").click()
    dialog.get_by_label("Type its name or id to confirm").fill(project_id)
    dialog.get_by_role("button", name="Delete project").click()
    expect(page.get_by_role("button", name="Create your first project")).to_be_visible()


def test_typed_text_survives_a_refusal_and_the_polling_behind_the_dialog(signed_in: Page) -> None:
    page = signed_in
    dialog = page.locator("dialog[open]")
    page.get_by_role("button", name="Create your first project").click()
    dialog.get_by_role("button", name="Create project").click()
    expect(page.locator("#poll")).to_be_visible()

    # Opened while the page still renews itself.
    open_tab(page, "Branches")
    page.get_by_role("button", name="Create branch").click()
    dialog.get_by_label("Name").fill("main")
    expect_quiet(page)
    expect(dialog.get_by_label("Name")).to_have_value("main")

    dialog.get_by_role("button", name="Create branch").click()
    expect(dialog.get_by_role("alert")).to_contain_text("There is a branch called “main” already")
    expect(dialog.get_by_label("Name")).to_have_value("main")
    dialog.get_by_label("Name").fill("<b>markup</b> & more")
    dialog.get_by_role("button", name="Create branch").click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("heading", name="<b>markup</b> & more")).to_be_visible()


@pytest.mark.thorough
def test_everything_works_without_scripts(page: Page, stack: Stack) -> None:
    context = page.context.browser.new_context(  # type: ignore[union-attr]
        base_url=stack.console_url, java_script_enabled=False
    )
    plain = context.new_page()
    plain.set_default_timeout(20_000)
    sign_in(plain, stack.new_key())
    plain.get_by_role("button", name="Create your first project").click()
    plain.get_by_label("Name").fill("plain")
    plain.get_by_role("button", name="Create project").click()
    expect(plain.get_by_role("heading", name="plain")).to_be_visible()
    expect(plain.locator("#notices")).to_contain_text("Started creating")

    def reloaded_until(words: str) -> None:
        for _ in range(100):
            if plain.locator(".endpoints tbody tr", has_text=words).count():
                return
            plain.reload()
        pytest.fail(f"{words} was never shown")

    reloaded_until("Active")
    plain.get_by_role("button", name="Suspend").click()
    plain.get_by_role("button", name="Suspend").click()
    reloaded_until("Idle")
    endpoint_id = plain.locator(".endpoints .lead code").first.inner_text()
    open_menu(plain, endpoint_id)
    plain.locator(f"[id='delete-{endpoint_id}']").click()
    plain.get_by_label("Type its id to confirm").fill("something else")
    plain.get_by_role("button", name="Delete endpoint").click()
    expect(plain.get_by_role("alert")).to_contain_text(f"This does not match {endpoint_id}")
    plain.get_by_label("Type its id to confirm").fill(endpoint_id)
    plain.get_by_role("button", name="Delete endpoint").click()
    expect(plain.get_by_text("Clients connect to a branch through its endpoint")).to_be_visible()
    context.close()
