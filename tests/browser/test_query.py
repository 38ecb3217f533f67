"""The query page in a browser: the editor, cancelling, what the browser keeps, plans, downloads."""

import gzip
import re

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.conftest import opened
from tests.browser.looking import expect_accessible
from tests.browser.test_journey import sign_in
from tests.support.project import Project
from tests.support.stack import ROOT, Stack

EDITOR_BYTES = 150_000


@pytest.fixture(scope="module")
def shop(stack: Stack) -> Project:
    shop = Project.create(stack, stack.client(), name="shop")
    shop.sql("CREATE TABLE birds (id int PRIMARY KEY, name text)")
    shop.sql("INSERT INTO birds VALUES (1, 'wren')")
    dev = shop.new_branch_id(name="dev", parent_id=shop.branch_id)
    shop.create_endpoint(dev)
    return shop


@pytest.fixture
def query(page: Page, shop: Project) -> Page:
    sign_in(page, shop.client.key)
    page.goto(f"{shop.path}/query")
    # The editor is loaded at the first movement.
    page.mouse.move(200, 200)
    expect(page.locator(".cm-editor")).to_be_visible()
    return page


def ask(page: Page, sql: str) -> None:
    page.get_by_label("SQL", exact=True).fill(sql)
    page.get_by_role("button", name="Run", exact=True).click()


def test_the_editor_completes_names_and_marks_words(query: Page) -> None:
    page = query
    # The endpoint is awake, so the tables are shown at once.
    expect(page.locator("[data-table=birds]")).to_be_visible()
    editor = page.get_by_label("SQL", exact=True)
    editor.press_sequentially("SELECT nam FROM bir")
    page.get_by_role("option", name="birds").click()
    expect(page.locator("#id_sql")).to_have_value("SELECT nam FROM birds")
    for _ in " FROM birds":
        page.keyboard.press("ArrowLeft")
    page.keyboard.press("e")
    page.get_by_role("option", name=re.compile("^name")).click()
    expect(page.locator(".sql-keyword").first).to_have_text("SELECT")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("cell", name="wren")).to_be_visible()
    expect_accessible(page)
    # A click beside the text, also a second one, leaves the focus in it.
    place = page.locator(".cm-scroller").bounding_box()
    assert place
    for _ in range(2):
        page.mouse.click(place["x"] + place["width"] / 2, place["y"] + place["height"] - 15)
        expect(editor).to_be_focused()
    # Tab leaves the editor.
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_focused()


def test_another_branch_begins_without_the_tables_and_the_rights_of_the_first(query: Page) -> None:
    expect(query.locator("[data-table=birds]")).to_be_visible()
    query.get_by_label("Read only").uncheck()
    query.get_by_label("Branch", exact=True).select_option(label="dev")
    expect(query.get_by_label("Read only")).to_be_checked()
    expect(query.locator("[data-table=birds]")).to_have_count(0)
    query.get_by_role("button", name="Show tables").click()
    expect(query.locator("[data-table=birds]")).to_be_visible(timeout=60_000)


def test_a_long_value_leaves_room_for_other_rows(query: Page) -> None:
    ask(query, "SELECT n, repeat('long ', 180) FROM generate_series(1, 9) n")
    row = query.locator(".cells tbody tr").first
    expect(row).to_be_visible()
    place = row.bounding_box()
    assert place
    assert place["height"] < 160
    expect_accessible(query)


def test_the_editor_is_small_and_loaded_only_there(query: Page, shop: Project) -> None:
    page = query
    scripts = "[...document.scripts].map((one) => one.src)"
    (script,) = [one for one in page.evaluate(scripts) if "editor.js" in one]
    assert len(gzip.compress(page.request.get(script).body())) <= EDITOR_BYTES
    page.goto(shop.path)
    assert not any("editor" in one or "query" in one for one in page.evaluate(scripts))
    assert "MIT" in (ROOT / "static/vendor/codemirror.LICENSE.md").read_text()


def test_the_query_page_works_before_its_editor_is_loaded(page: Page, shop: Project) -> None:
    held: list[Route] = []
    page.route("**/perch.editor.js*", lambda route: held.append(route))
    sign_in(page, shop.client.key)
    page.goto(f"{shop.path}/query")
    field = page.get_by_label("SQL", exact=True)
    field.press_sequentially("SELECT 40 + 3")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("cell", name="43", exact=True)).to_be_visible()
    expect(page.locator("#history")).to_contain_text("SELECT 40 + 3")
    page.keyboard.press("ArrowLeft")
    assert len(held) == 1
    # The editor continues where the field was.
    held[0].continue_()
    expect(page.locator(".cm-editor.cm-focused")).to_be_visible()
    page.keyboard.press("1")
    expect(page.locator("#id_sql")).to_have_value("SELECT 40 + 13")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("cell", name="53", exact=True)).to_be_visible()


def test_a_query_is_cancelled_in_postgres(query: Page, shop: Project) -> None:
    page = query
    running = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(31)'"
    running += " AND state = 'active'"
    ask(page, "SELECT pg_sleep(31)")
    elapsed = page.get_by_role("timer")
    expect(elapsed).to_have_text(re.compile(r"^\d\.\d s$"))
    page.get_by_role("button", name="Cancel", exact=True).click()
    calm = re.compile(r"^\s*Cancelled after .* m?s\. Nothing was changed\.\s*$")
    expect(page.locator("#answer")).to_have_text(calm)
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator("#history li").first).to_contain_text("Cancelled · main")
    expect(elapsed).to_be_hidden()
    expect(page.get_by_role("button", name="Cancel", exact=True)).to_be_hidden()
    expect(page.get_by_label("SQL", exact=True)).to_be_focused()
    ask(page, running)
    expect(page.get_by_role("cell", name="0", exact=True)).to_be_visible()


@pytest.mark.thorough
def test_the_browser_keeps_queries_and_forgets_them(
    browser: Browser, stack: Stack, query: Page, shop: Project
) -> None:
    page = query
    ask(page, "SELECT 'one'")
    history = page.locator("#history")
    expect(history).to_contain_text(re.compile(r"SELECT 'one'.*main.*just now.*ms"))
    ask(page, "ALTER ROLE neondb_owner PASSWORD 'secret'")
    expect(page.get_by_role("alert")).to_contain_text("read-only")
    ask(page, "SELECT nowhere")
    expect(history.locator("li")).to_have_count(2)
    expect(history.locator("li").first).to_contain_text("Failed")
    history.get_by_role("button", name="SELECT 'one'").click()
    expect(page.locator("#id_sql")).to_have_value("SELECT 'one'")
    page.get_by_role("button", name="Save query…").click()
    page.get_by_label("Name of the query").fill("first one")
    page.keyboard.press("Enter")
    # What is kept, and what is typed, is there after leaving and coming back.
    page.get_by_label("SQL", exact=True).fill("SELECT 'half-typed")
    page.goto(shop.path)
    page.go_back()
    expect(page.locator("#id_sql")).to_have_value("SELECT 'half-typed")
    page.get_by_role("button", name="first one", exact=True).click()
    expect(page.locator("#id_sql")).to_have_value("SELECT 'one'")
    expect_accessible(page)
    kept = page.evaluate("JSON.stringify({...localStorage})")
    assert "secret" not in kept
    # Another account in the same browser sees none of it.
    state = page.context.storage_state()
    state["cookies"] = []
    other = Project.create(stack, stack.client(), name="other")
    with opened(browser, stack.console_url, storage_state=state) as foreign:
        sign_in(foreign, other.client.key)
        foreign.goto(f"{other.path}/query")
        expect(foreign.locator("#history li, #saved li")).to_have_count(0)
    page.get_by_role("button", name="Delete the saved query first one").click()
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#history li, #saved li")).to_have_count(0)
    assert "SELECT" not in page.evaluate("JSON.stringify({...localStorage})")


def test_the_address_names_the_branch_and_each_branch_has_its_draft(
    query: Page, shop: Project
) -> None:
    page, chosen = query, query.get_by_label("Branch", exact=True)
    expect(page).to_have_url(re.compile(rf"\?branch={shop.branch_id}$"))
    page.get_by_label("SQL", exact=True).fill("SELECT 'of main'")
    chosen.select_option(label="dev")
    dev = chosen.input_value()
    expect(page).to_have_url(re.compile(rf"\?branch={dev}$"))
    # What is typed stays, as it may be meant for the other branch too.
    expect(page.locator("#id_sql")).to_have_value("SELECT 'of main'")
    page.goto(f"{shop.path}/query?branch={dev}")
    expect(chosen).to_have_value(dev)
    expect(page.locator("#id_sql")).to_have_value("")
    page.get_by_label("SQL", exact=True).fill("SELECT 'of dev'")
    page.reload()
    expect(page.locator("#id_sql")).to_have_value("SELECT 'of dev'")
    page.goto(f"{shop.path}/query?branch={shop.branch_id}")
    expect(page.locator("#id_sql")).to_have_value("SELECT 'of main'")


@pytest.mark.thorough
def test_a_query_runs_on_another_branch(query: Page) -> None:
    page = query
    page.get_by_label("Read only").uncheck()
    ask(page, "CREATE TABLE here AS SELECT 1 AS n")
    expect(page.locator(".done")).to_be_visible()
    page.get_by_label("SQL", exact=True).fill("SELECT to_regclass('here') IS NULL AS missing")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("cell", name="f", exact=True)).to_be_visible()
    page.get_by_text("Run on another branch").click()
    page.get_by_role("button", name="dev", exact=True).click()
    expect(page.get_by_role("heading", name="Result on dev")).to_be_visible()
    expect(page.get_by_role("cell", name="t", exact=True)).to_be_visible()
    expect(page.get_by_label("Branch")).to_contain_text("main")
    # There, it changes something only once that is confirmed, although “Read only” is off.
    ask(page, "DROP TABLE here")
    expect(page.locator(".done")).to_contain_text("DROP")
    page.get_by_label("SQL", exact=True).fill("CREATE TABLE there AS SELECT 1 AS n")
    page.get_by_text("Run on another branch").click()
    page.get_by_role("button", name="dev", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("statements run read only at first")
    page.get_by_role("button", name="Run with changes on dev").click()
    expect(page.get_by_role("heading", name="Result on dev")).to_be_visible()
    expect(page.locator(".done")).to_contain_text("SELECT")
    page.get_by_label("Read only").check()
    ask(page, "CREATE TABLE here AS SELECT 1 AS n")
    page.get_by_role("button", name="Turn off read only and run").click()
    expect(page.locator(".done")).to_contain_text("SELECT")
    expect(page.get_by_label("Read only")).not_to_be_checked()
