"""The keyboard focus is never lost, and the keyboard is enough for everything."""

import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.looking import focused, tab_to
from tests.browser.open_pages import SOON, open_page, settled
from tests.browser.test_journey import sign_in
from tests.support.project import Project
from tests.support.stack import Stack
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def shop(stack: Stack) -> Project:
    return Project.create(stack, stack.client(), name="shop")


def test_a_pressed_button_keeps_the_focus(page: Page, shop: Project) -> None:
    shop.done(shop.start())
    open_page(page, shop)
    power = page.locator(f"[id='power-{shop.endpoint_id}']")
    dialog = page.locator("dialog[open]")
    for opener in ("Enter", "Space"):
        power.focus()
        page.keyboard.press(opener)
        # A button that drops connections asks first. After Cancel, the focus is back on the button.
        dialog.locator("[data-close]").focus()
        page.keyboard.press("Enter")
        expect(dialog).to_have_count(0)
        expect(power).to_be_focused()
    page.keyboard.press("Enter")
    dialog.get_by_role("button", name="Suspend").focus()
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    expect(power).to_have_text(f"Start {shop.endpoint_id}", timeout=20_000)
    expect(page.locator("#live")).to_have_attribute("data-mark", re.compile("."))
    expect(power).to_be_focused()
    page.keyboard.press("Space")
    expect(power).to_have_text(f"Suspend {shop.endpoint_id}", timeout=20_000)
    expect(page.locator("#live")).to_have_attribute("data-mark", re.compile("."))
    expect(power).to_be_focused()


# Holds back the browser's `close` events, of which Chromium sends each with the next frame.
HOLD_CLOSE = """() => {
    const dialog = document.getElementById("dialog");
    window.closings = 0;
    document.addEventListener("close", (event) => {
        if (!event.isTrusted) return;
        event.stopImmediatePropagation();
        window.closings += 1;
    }, true);
    window.tellClosed = () => dialog.dispatchEvent(new Event("close"));
}"""


def test_a_dialog_that_opens_again_before_its_close_event_keeps_its_form(
    page: Page, shop: Project
) -> None:
    shop.done(shop.start())
    open_page(page, shop)
    page.evaluate(HOLD_CLOSE)
    power = page.locator(f"[id='power-{shop.endpoint_id}']")
    dialog = page.locator("dialog[open]")
    power.focus()
    page.keyboard.press("Enter")
    dialog.locator("[data-close]").focus()
    page.keyboard.press("Enter")
    expect(power).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("button", name="Suspend")).to_be_visible()
    page.wait_for_function("() => closings === 1")
    page.evaluate("tellClosed()")
    expect(dialog.get_by_role("button", name="Suspend")).to_be_visible()
    expect(dialog.locator("#notices")).to_be_attached()
    dialog.locator("[data-close]").focus()
    page.keyboard.press("Enter")
    page.wait_for_function("() => closings === 2")
    page.evaluate("tellClosed()")
    expect(page.locator("#dialog > *")).to_have_count(0)
    expect(page.locator("body > #notices")).to_be_attached()
    expect(power).to_be_focused()


@pytest.mark.thorough
def test_a_close_event_does_not_take_the_focus_from_the_next_opener(
    page: Page, shop: Project
) -> None:
    open_page(page, shop)
    page.evaluate(HOLD_CLOSE)
    dialog = page.locator("dialog[open]")
    page.locator(f"[id='connect-{shop.endpoint_id}']").focus()
    page.keyboard.press("Enter")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    page.wait_for_function("() => closings === 1")
    held: list[Route] = []
    page.route("**/new-endpoint", lambda route: held.append(route))
    page.locator("#create-endpoint").focus()
    page.keyboard.press("Enter")
    wait_for(lambda: page.evaluate("1") and held, "the form's request")
    page.evaluate("tellClosed()")
    expect(page.locator("#create-endpoint")).to_be_focused()
    held[0].continue_()
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    page.wait_for_function("() => closings === 2")
    page.evaluate("tellClosed()")
    expect(page.locator("#create-endpoint")).to_be_focused()


@pytest.mark.thorough
def test_a_button_that_waits_for_its_answer_keeps_the_focus(page: Page, shop: Project) -> None:
    shop.done(shop.suspend())
    open_page(page, shop)
    power = page.locator(f"[id='power-{shop.endpoint_id}']")
    held: list[Route] = []
    page.route("**/start", lambda route: held.append(route))
    power.focus()
    page.keyboard.press("Enter")
    expect(power).to_be_disabled()
    # Meanwhile the page renews itself because of a change made elsewhere.
    with page.expect_response(re.compile("/live")):
        page.evaluate("Perch.renew()")
    expect(page.locator("body.htmx-request")).to_have_count(0)
    assert focused(page) == ""
    held[0].continue_()
    expect(power).to_have_text(f"Suspend {shop.endpoint_id}", timeout=20_000)
    expect(power).to_be_focused()


@pytest.mark.thorough
def test_after_a_row_is_deleted_the_next_one_has_the_focus(page: Page, stack: Stack) -> None:
    project = Project.create(stack, stack.client(), name="shop")
    branch = project.new_branch_id(name="gone")
    other = project.done(project.create_endpoint(branch))["endpoint"]["id"]
    open_page(page, project)
    dialog = page.locator("dialog[open]")
    page.get_by_label(f"More actions for {other}").focus()
    page.keyboard.press("Enter")
    page.locator(f"[id='delete-{other}']").focus()
    page.keyboard.press("Enter")
    dialog.get_by_label("Type its id to confirm").fill(other)
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    expect(page.locator(".endpoints tbody tr")).to_have_count(1)
    expect(page.locator("tbody :focus, thead :focus")).to_have_count(1, timeout=SOON)


@pytest.mark.thorough
def test_escape_closes_only_the_menu(page: Page, shop: Project) -> None:
    open_page(page, shop)
    summary = page.get_by_label(f"More actions for {shop.endpoint_id}")
    tab_to(page, f"More actions for {shop.endpoint_id}")
    page.keyboard.press("Space")
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    expect(summary).to_be_focused()


@pytest.mark.thorough
def test_escape_does_not_close_a_key_that_is_shown_once(page: Page, stack: Stack) -> None:
    sign_in(page, stack.new_key())
    page.goto("/api-keys")
    page.locator("[hx-get='/api-keys/new']").first.click()
    dialog = page.locator("dialog[open]")
    dialog.get_by_role("textbox", name="Name").fill("deploy")
    dialog.get_by_role("button", name="Create key").click()
    expect(dialog.locator(".secret")).to_be_visible()
    for _ in range(3):
        page.keyboard.press("Escape")
    expect(dialog.locator(".secret")).to_be_visible()
    dialog.get_by_role("button", name="Done").click()
    expect(page.locator(".secret")).to_have_count(0)


HEAR = """() => {
    window.heard = [];
    const live = "[role=alert], [role=status], [aria-live]";
    new MutationObserver((changes) => {
        for (const change of changes) {
            for (const node of change.addedNodes) {
                const around = (node.closest ? node : node.parentElement)?.closest(live);
                const within = node.querySelectorAll ? [...node.querySelectorAll(live)] : [];
                for (const one of [around, ...within].filter(Boolean)) {
                    const words = one.textContent.trim().replace(/\\s+/g, " ");
                    if (words) window.heard.push(words);
                }
            }
        }
    }).observe(document.body, { childList: true, subtree: true });
}"""


@pytest.mark.thorough
def test_nothing_is_announced_twice(page: Page, stack: Stack) -> None:
    project = Project.create(stack, stack.client(), name="shop")
    project.new_branch_id(name="free")
    open_page(page, project)
    page.evaluate(HEAR)
    dialog = page.locator("dialog[open]")
    page.locator("#create-endpoint").click()
    dialog.get_by_role("button", name="Create endpoint").click()
    expect(page.locator(".notice.success")).to_contain_text("Started creating")
    expect(page.locator("#announce")).to_have_text("All operations have finished.", timeout=20_000)
    # A notice that is still shown moves into the next dialog, and out of it.
    page.locator("#create-endpoint").click()
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    heard = page.evaluate("window.heard")
    assert len(heard) == len(set(heard)) == 2, heard


@pytest.mark.thorough
def test_a_poll_and_a_renewal_at_once_announce_the_end_once(page: Page, stack: Stack) -> None:
    project = Project.create(stack, stack.client(), name="shop")
    project.done(project.start())
    open_page(page, project)
    page.evaluate(HEAR)
    held: list[Route] = []
    with project.locked():
        project.client.post(project.endpoint_path(rest="/restart"))
        expect(page.locator("#live")).not_to_have_attribute("data-mark", re.compile("."))
        page.route(re.compile(r"/live\b"), lambda route: held.append(route), times=1)
        wait_for(lambda: page.evaluate("1") and held, "a poll")
    wait_for(
        lambda: {one["status"] for one in project.operations()} == {"finished"},
        "the end of the restart",
    )
    # No second request is sent before the first is answered.
    page.evaluate("Perch.renew()")
    with page.expect_response(re.compile(r"/live\b")):
        held[0].continue_()
    expect(page.locator("#announce")).to_have_text("All operations have finished.", timeout=20_000)
    with page.expect_response(re.compile(r"/live\b")):
        page.evaluate("Perch.renew()")
    settled(page)
    assert page.evaluate("heard") == ["All operations have finished."]
