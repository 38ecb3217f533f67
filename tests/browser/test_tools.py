"""Sign-in links, themes, the palette, shortcuts, queries and curl, in a real browser."""

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Literal

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import copied
from tests.browser.looking import (
    WIDTHS_OF,
    expect_accessible,
    expect_good,
    focused,
)
from tests.browser.test_journey import sign_in
from tests.support.client import Client
from tests.support.project import Project
from tests.support.stack import ROOT, Stack

DARK, LIGHT = "rgb(20, 24, 21)", "rgb(246, 246, 242)"


@pytest.fixture(scope="module")
def operator(stack: Stack) -> Client:
    return Client(stack.api_url, (stack.state_dir / "api-key").read_text().strip())


@pytest.fixture(scope="module")
def shop(stack: Stack, operator: Client) -> Iterator[Project]:
    made = Project.create(stack, operator, name="Bird shop")
    made.new_branch(endpoint=True, name="dev")
    yield made
    made.client.delete(made.path)


@pytest.fixture
def signed_in(page: Page, operator: Client) -> Page:
    sign_in(page, operator.key)
    return page


def background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))


def test_a_one_time_link_signs_in(page: Page, stack: Stack) -> None:
    command = [sys.executable, str(ROOT / "manage.py"), "sign_in_link"]
    command += ["--state-dir", str(stack.state_dir)]
    link = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    page.goto(link)
    button = page.get_by_role("button", name="Sign in")
    expect(button).to_be_focused()
    expect_good(page, WIDTHS_OF)
    button.press("Enter")
    expect(page.get_by_role("heading", name="Projects", exact=True)).to_be_visible()
    expect(page.locator("#menu-account summary")).to_contain_text("local")
    page.goto(link)
    expect(page.get_by_role("heading", name="This link has expired")).to_be_visible()


@pytest.mark.thorough
def test_the_chosen_theme_is_kept(signed_in: Page) -> None:
    page = signed_in
    systems: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for system in systems:
        page.emulate_media(color_scheme=system, reduced_motion="reduce")
        for chosen, expected in (("Dark", DARK), ("Light", LIGHT)):
            page.locator("#menu-account summary").click()
            page.get_by_role("link", name="Preferences").click()
            dialog = page.locator("dialog[open]")
            dialog.get_by_label("Theme").select_option(chosen)
            with page.expect_navigation():
                dialog.get_by_role("button", name="Save").click()
            assert background(page) == expected, (system, chosen)
            expect_accessible(page)
    page.goto("/preferences")
    page.get_by_label("Theme").select_option("System")
    with page.expect_navigation():
        page.get_by_role("button", name="Save").click()
    page.emulate_media(color_scheme="dark")
    assert background(page) == DARK


@pytest.mark.thorough
def test_the_palette_works_by_keyboard_alone(signed_in: Page, shop: Project) -> None:
    page = signed_in
    page.goto(f"/projects/{shop.id}/operations")
    page.keyboard.press("Control+k")
    dialog = page.locator("dialog[open]")
    expect(dialog.get_by_role("heading", name="Go to")).to_be_visible()
    assert focused(page) == "palette-q"
    expect_accessible(page)
    # Letters typed into the palette are not shortcuts.
    page.keyboard.type("g p ?")
    expect(dialog.get_by_text("No matches.")).to_be_visible()
    # What is called exactly so comes before what only contains it.
    page.locator("#palette-q").fill("main")
    first = dialog.locator(".goals li:visible").first
    expect(first).to_have_text(re.compile(r"^main br-\S+ branch$"))
    page.locator("#palette-q").fill("endpoint main")
    # The account may have such endpoints in other projects, too.
    expect(first).to_contain_text(shop.endpoint_id)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    assert focused(page) == "palette-q"
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"/endpoints/{shop.endpoint_id}$"))
    page.keyboard.press("Control+k")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


@pytest.mark.thorough
def test_single_key_shortcuts(signed_in: Page, shop: Project) -> None:
    page = signed_in
    page.goto(f"/projects/{shop.id}")
    page.keyboard.type("gb")
    expect(page).to_have_url(re.compile("/branches$"))
    page.keyboard.type("gh")
    expect(page.get_by_role("heading", name="Service status")).to_be_visible()
    page.keyboard.press("?")
    dialog = page.locator("dialog[open]")
    expect(dialog.get_by_role("heading", name="Shortcuts")).to_be_visible()
    expect_accessible(page)
    # While a dialog is open, shortcuts do nothing.
    page.keyboard.type("gp")
    expect(page).to_have_url(re.compile("/status$"))
    page.keyboard.press("Escape")


@pytest.mark.thorough
def test_no_shortcut_while_typing_or_when_switched_off(signed_in: Page, shop: Project) -> None:
    page = signed_in
    page.goto(f"/projects/{shop.id}/query")
    page.get_by_label("SQL").click()
    page.keyboard.type("gp?")
    expect(page.locator("#id_sql")).to_have_value("gp?")
    page.goto("/preferences")
    page.get_by_label("Single-key shortcuts").uncheck()
    with page.expect_navigation():
        page.get_by_role("button", name="Save").click()
    page.goto("/status")
    page.keyboard.type("gp")
    page.keyboard.press("?")
    expect(page).to_have_url(re.compile("/status$"))
    expect(page.locator("dialog[open]")).to_have_count(0)
    page.keyboard.press("Control+k")
    expect(page.locator("dialog[open]")).to_be_visible()


def test_a_query_and_its_errors(signed_in: Page, shop: Project) -> None:
    page = signed_in
    page.goto(f"/projects/{shop.id}/query")
    page.get_by_label("SQL").fill("SELECT 6 * 7 AS answer")
    page.keyboard.press("Control+Enter")
    cell = page.get_by_role("cell", name="42")
    expect(cell).to_be_visible()
    page.get_by_label("SQL").fill("SELECT 1;\nSELECT nowhere")
    page.get_by_label("SQL").press("Control+Enter")
    expect(page.locator("mark")).to_have_text("nowhere")
    assert page.evaluate("getSelection().toString()") == "nowhere"
    page.get_by_role("button", name="Explain", exact=True).click()
    expect(page.locator("mark")).to_have_text("nowhere")
    page.get_by_label("Branch").select_option("dev")
    with page.expect_response(re.compile("/query$")):
        page.get_by_label("Branch").select_option("main")
    # The typed query stays.
    expect(page.locator("#id_sql")).to_have_value("SELECT 1;\nSELECT nowhere")
    page.get_by_label("Read only").uncheck()
    page.get_by_label("SQL").fill("CREATE TABLE birds AS SELECT 'wren' AS name")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".done")).to_contain_text("SELECT · 1 row")
    # The tree of tables follows.
    expect(page.locator("[data-table=birds]")).to_be_visible()


@pytest.mark.thorough
def test_a_read_only_key_is_offered_no_changes(page: Page, stack: Stack, shop: Project) -> None:
    made = shop.client.post("/api_keys", {"key_name": "reader", "read_only": True})
    sign_in(page, made["key"])
    expect(page.get_by_role("button", name="Create project")).to_be_hidden()
    for path in ("", "/branches", "/settings", f"/endpoints/{shop.endpoint_id}"):
        page.goto(f"/projects/{shop.id}{path}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.locator("main [hx-target='#dialog']:visible")).to_have_count(0)
        expect(page.locator("main form[method=post]:visible")).to_have_count(0)
        expect_accessible(page)


@pytest.mark.thorough
def test_a_form_shows_its_request_as_curl(signed_in: Page, shop: Project) -> None:
    page = signed_in
    page.goto(f"/projects/{shop.id}/branches")
    page.get_by_role("button", name="Create branch").first.click()
    dialog = page.locator("#dialog")
    dialog.get_by_label("Name").fill("it's")
    dialog.get_by_label("Schema only").check()
    dialog.get_by_role("button", name="Show as curl").click()
    curl = dialog.locator(".curl pre")
    expect(curl).to_contain_text("""{"name": "it'"'"'s", """)
    expect(curl).to_contain_text('"init_source": "schema-only"')
    expect(curl).to_be_focused()
    expect_accessible(page)
    dialog.get_by_role("button", name="Copy curl").click()
    assert copied(page) == curl.text_content()
    # A command that does not match the form is not shown.
    dialog.get_by_label("Name").fill("birds")
    expect(curl).to_be_hidden()
    dialog.get_by_role("button", name="Create branch").click()
    expect(page.get_by_text("Started creating branch birds.")).to_be_visible()
