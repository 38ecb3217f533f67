"""The page of tables in a browser: pages, sorting, filters, a change with its SQL, CSV."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.looking import expect_accessible
from tests.browser.test_journey import sign_in
from tests.support.project import Project
from tests.support.stack import Stack


@pytest.fixture(scope="module")
def shop(stack: Stack) -> Project:
    shop = Project.create(stack, stack.client(), name="shop")
    shop.sql("CREATE TABLE birds (id int PRIMARY KEY, name text, note text)")
    shop.sql(
        "INSERT INTO birds SELECT n, 'bird ' || n % 7, nullif(n % 3, 0)::text "
        "FROM generate_series(1, 120) n"
    )
    return shop


@pytest.fixture
def tables(page: Page, shop: Project) -> Page:
    sign_in(page, shop.client.key)
    page.goto(f"{shop.path}/tables")
    page.get_by_role("link", name="birds").click()
    return page


def first_cells(page: Page) -> list[str]:
    return page.locator("tbody td:first-child").all_inner_texts()


def test_rows_are_paged_changed_and_sent_both_ways(
    tables: Page, shop: Project, tmp_path: Path
) -> None:
    page = tables
    expect(page.locator("tbody tr")).to_have_count(50)
    assert first_cells(page)[::49] == ["1", "50"]
    page.get_by_role("link", name="Next").click()
    expect(page.locator("tbody td").first).to_have_text("51")
    page.get_by_role("link", name="Previous").click()
    expect(page.locator("tbody td").first).to_have_text("1")
    expect_accessible(page)
    page.get_by_label("Filter by").select_option("name")
    page.get_by_label("Comparison").select_option("contains")
    page.get_by_label("Value", exact=True).fill("BIRD 6")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(17)
    page.get_by_role("link", name="Edit row 1", exact=True).click()
    # The dialog says where the statement will run, and the table stays behind it.
    dialog = page.locator("dialog[open]")
    expect(dialog).to_contain_text("On branch main, in database neondb, as role neondb_owner.")
    dialog.get_by_label("name text", exact=True).fill("it's \\ a\nheron")
    dialog.get_by_role("button", name="Review SQL…").click()
    expect(dialog.locator("pre")).to_have_text(
        'UPDATE "public"."birds" SET "name" = E\'it\'\'s \\\\ a\nheron\''
        " WHERE \"id\" = '6' AND \"name\" = 'bird 6'"
    )
    expect_accessible(page)
    assert shop.sql("SELECT name FROM birds WHERE id = 6") == [("bird 6",)]
    page.get_by_role("button", name="Save row", exact=True).click()
    expect(page.locator("#notices")).to_contain_text("was changed")
    assert shop.sql("SELECT name FROM birds WHERE id = 6") == [("it's \\ a\nheron",)]
    # It is filtered still, and so is the export.
    expect(page.locator("tbody tr")).to_have_count(16)
    with page.expect_download() as download:
        page.get_by_role("button", name="Export CSV").click()
    exported = download.value.path().read_text()
    assert exported.splitlines()[:2] == ["id,name,note", "13,bird 6,1"]
    file = tmp_path / "more.csv"
    file.write_text('id,name,note\r\n1000,"a ""b"", c",\r\n1001,"",""\r\n')
    page.get_by_role("button", name="Import CSV…").click()
    page.get_by_label("CSV file").set_input_files(file)
    page.get_by_role("button", name="Import").click()
    expect(page.locator("#notices")).to_contain_text("2 rows imported into birds")
    rows = shop.sql("SELECT name, note FROM birds WHERE id >= 1000 ORDER BY id")
    assert rows == [('a "b", c', None), ("", "")]
    # The same rows are refused as a whole, and the page says where.
    page.get_by_role("button", name="Import CSV…").click()
    file.write_text("id\n2000\n1000\n")
    page.get_by_label("CSV file").set_input_files(file)
    page.get_by_role("button", name="Import").click()
    expect(page.get_by_role("alert")).to_contain_text("lines 2 to 3")
    assert shop.sql("SELECT count(*) FROM birds WHERE id = 2000") == [(0,)]
    shop.sql("DELETE FROM birds WHERE id >= 1000")


@pytest.mark.thorough
def test_a_row_is_deleted_by_sql_that_is_shown_before(tables: Page, shop: Project) -> None:
    page, dialog = tables, tables.locator("dialog[open]")
    shop.sql("CREATE TABLE eggs (bird int REFERENCES birds)")
    shop.sql("INSERT INTO eggs VALUES (4)")
    page.get_by_role("link", name="Edit row 4", exact=True).click()
    dialog.get_by_role("button", name="Delete row…").click()
    expect(dialog.locator("pre")).to_have_text('DELETE FROM "public"."birds" WHERE "id" = \'4\'')
    expect_accessible(page)
    # Another row refers to it.
    dialog.get_by_role("button", name="Delete row", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("foreign key")
    assert shop.sql("SELECT count(*) FROM birds WHERE id = 4") == [(1,)]
    shop.sql("DROP TABLE eggs")
    dialog.get_by_role("button", name="Delete row…").click()
    dialog.get_by_role("button", name="Delete row", exact=True).dblclick()
    expect(page.locator("#notices")).to_contain_text("The row of birds was deleted.")
    assert shop.sql("SELECT count(*) FROM birds WHERE id = 4") == [(0,)]
    shop.sql("INSERT INTO birds VALUES (4, 'bird 4', '1')")


@pytest.mark.thorough
def test_the_chosen_branch_is_shown_at_once(tables: Page, shop: Project) -> None:
    dev_id = shop.new_branch_id(name="dev")
    endpoint_id = shop.create_endpoint(dev_id)["endpoint"]["id"]
    shop.sql("DELETE FROM birds WHERE id > 3", endpoint_id=endpoint_id)
    page = tables
    page.reload()
    page.get_by_label("Branch").select_option("dev")
    expect(page).to_have_url(re.compile(f"branch={dev_id}"))
    page.get_by_role("link", name="birds").click()
    expect(page.locator("tbody tr")).to_have_count(3)
    page.get_by_role("link", name="Query", exact=True).click()
    expect(page.get_by_label("Branch")).to_have_value(dev_id)


def test_a_value_that_is_typed_unticks_null(tables: Page, shop: Project) -> None:
    page, dialog = tables, tables.locator("dialog[open]")
    page.get_by_role("link", name="Edit row 3", exact=True).click()
    expect(dialog.get_by_label("NULL for note")).to_be_checked()
    dialog.get_by_label("note text", exact=True).press_sequentially("fed")
    expect(dialog.get_by_label("NULL for note")).not_to_be_checked()
    dialog.get_by_role("button", name="Review SQL…").click()
    expect(dialog.locator("pre")).to_contain_text("SET \"note\" = 'fed'")
    dialog.get_by_role("button", name="Save row", exact=True).click()
    expect(page.locator("#notices")).to_contain_text("was changed")
    assert shop.sql("SELECT note FROM birds WHERE id = 3") == [("fed",)]
    shop.sql("UPDATE birds SET note = NULL WHERE id = 3")
