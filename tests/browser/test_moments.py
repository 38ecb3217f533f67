"""Going back to a moment: choosing it on the band or by typing, and what is made of it."""

import re
from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import opened
from tests.browser.test_journey import expect_quiet, sign_in
from tests.support.past import with_history, write
from tests.support.project import Project
from tests.support.stack import Stack

# Half an hour beside whole hours, so that an offset cannot be mistaken.
ZONE = "Asia/Kolkata"


@pytest.fixture(scope="module")
def notes(stack: Stack) -> Iterator[tuple[Project, str]]:
    """A project with a table, and the moment between its first and its second row."""
    client = stack.client()
    project = with_history(Project.create(stack, client, name="notes"))
    between, _ = write(project, "first")
    write(project, "second")
    yield project, between
    project.client.delete(project.path)


@pytest.fixture
def there(browser: Browser, stack: Stack, notes: tuple[Project, str]) -> Iterator[Page]:
    """The page on which a moment of the branch is chosen."""
    with opened(browser, stack.console_url, timezone_id=ZONE) as page:
        project, _ = notes
        sign_in(page, project.client.key)
        page.goto(f"{project.branch_path()}/history")
        yield page


def local(moment: str) -> str:
    """Return the moment as a reader in ZONE types it."""
    at = datetime.fromisoformat(moment).astimezone(ZoneInfo(ZONE))
    return at.strftime("%Y-%m-%d %H:%M:%S.%f")


def looked(page: Page) -> None:
    """Wait until the page has asked for what is newer than its band, and shows it."""
    expect(page.locator("#undos")).not_to_have_attribute("aria-busy", "true")


def rows(project: Project, branch_id: str) -> list[str]:
    (endpoint_id,) = [one["id"] for one in project.endpoints() if one["branch_id"] == branch_id]
    return [text for (text,) in project.sql("SELECT text FROM notes", endpoint_id=endpoint_id)]


def branch_id_of(page: Page) -> str:
    found = re.search(r"/branches/([\w-]+)$", page.url)
    assert found, page.url
    return found[1]


def test_a_moment_is_chosen_by_keyboard_and_becomes_a_branch(
    there: Page, notes: tuple[Project, str]
) -> None:
    page, (project, between) = there, notes
    found, field = page.locator("#found"), page.get_by_label("Time or LSN")
    slider = page.get_by_label("Moment on the band")
    looked(page)
    slider.focus()
    page.keyboard.press("Home")
    expect(found).to_contain_text("none since the full copy")
    beginning = field.input_value()
    assert slider.get_attribute("aria-valuetext") == beginning
    page.keyboard.press("End")
    latest = page.locator("#band").get_attribute("data-latest")
    expect(found).to_have_attribute("data-moment", str(latest))
    assert field.input_value() != beginning
    expect(slider).to_be_focused()

    # The day is left out, as on the axis of the band.
    field.fill(local(between)[11:])
    expect(page.locator("#in-utc")).to_contain_text(between[:19].replace("T", " "))
    page.keyboard.press("Enter")
    expect(found).to_have_attribute("data-moment", between)
    expect(found).to_contain_text("Last commit included")
    expect(page).to_have_url(re.compile(r"\?moment=[^&]*%2B05%3A30$"))
    last = found.locator(".in time").get_attribute("datetime")
    following = found.locator(".out time").get_attribute("datetime")
    assert last
    assert following
    assert datetime.fromisoformat(last) < datetime.fromisoformat(between)
    assert datetime.fromisoformat(between) < datetime.fromisoformat(following)

    page.get_by_role("button", name="Create branch…").press("Enter")
    dialog = page.locator("dialog[open]")
    dialog.get_by_label("Name").fill("then")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("then")
    expect_quiet(page)
    assert rows(project, branch_id_of(page)) == ["first"]


@pytest.mark.thorough
def test_a_typed_name_survives_the_choice_of_another_moment(
    there: Page, notes: tuple[Project, str]
) -> None:
    page, (project, between) = there, notes
    dialog = page.locator("dialog[open]")
    page.goto(f"{project.path}/branches")
    page.get_by_role("button", name="Create branch").click()
    dialog.get_by_label("Name").fill("from before")
    dialog.get_by_label("As of").select_option("past")
    dialog.get_by_role("button", name="Create branch").click()
    field = page.get_by_label("Time or LSN")
    for at, name in ((between, "from before"), (local(between), "renamed")):
        field.fill(at)
        field.press("Enter")
        expect(page.locator("#found")).to_have_attribute("data-moment", between)
        page.get_by_role("button", name="Create branch…").click()
        expect(dialog.get_by_label("Name")).to_have_value(name)
        dialog.get_by_label("Name").fill("renamed")
        dialog.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Restore main…").click()
    dialog.get_by_label("Keep current data as branch").fill("kept")
    dialog.get_by_role("button", name="Cancel").click()
    page.get_by_label("Moment on the band").press("End")
    expect(page.locator("#found")).not_to_have_attribute("data-moment", between)
    page.get_by_role("button", name="Restore main…").click()
    expect(dialog.get_by_label("Keep current data as branch")).to_have_value("kept")


@pytest.mark.thorough
def test_a_moment_is_queried(there: Page, notes: tuple[Project, str]) -> None:
    page, (_, between) = there, notes
    field = page.get_by_label("Time or LSN")
    field.fill(between)
    field.press("Enter")
    expect(page.locator("#found")).to_have_attribute("data-moment", between)
    page.get_by_role("button", name="Query", exact=True).click()
    expect(page.get_by_text("You read a past state: ")).to_contain_text(local(between)[:23])
    page.get_by_label("SQL").fill("SELECT text FROM notes")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".cells td")).to_have_text(["first"])
    # What was typed for the past is not offered for the present, nor the other way round.
    page.get_by_role("link", name="Back to the present").click()
    expect(page.locator("#id_sql")).to_have_value("")
    page.get_by_label("SQL").fill("SELECT text FROM notes")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".cells td")).to_have_text(["first", "second"])


def test_the_band_shows_what_happened_just_now(there: Page, notes: tuple[Project, str]) -> None:
    page, (project, between) = there, notes
    looked(page)
    expect(page.locator("#band .drop")).to_have_count(0)
    field = page.get_by_label("Time or LSN")
    field.fill(between)
    field.press("Enter")
    expect(page.locator("#found")).to_have_attribute("data-moment", between)
    before = page.locator("#band").get_attribute("data-latest")
    project.sql("CREATE TABLE gone (); DROP TABLE gone")
    page.get_by_role("button", name="Check again").click()
    expect(page.locator("#band svg.drop")).to_have_count(1)
    expect(page.locator("#happenings")).to_contain_text("removed", ignore_case=True)
    assert page.locator("#band").get_attribute("data-latest") != before
    # The slider still stands at the chosen moment, which is no longer at the end.
    slider = page.get_by_label("Moment on the band")
    assert int(slider.input_value()) < int(slider.get_attribute("max") or 0)


@pytest.mark.thorough
def test_a_moment_is_chosen_by_mouse(there: Page) -> None:
    page = there
    slider = page.get_by_label("Moment on the band")
    looked(page)
    box = slider.bounding_box()
    assert box
    # The present, where the slider is already.
    page.mouse.click(box["x"] + box["width"] - 4, box["y"] + box["height"] / 2)
    latest = str(there.locator("#band").get_attribute("data-latest"))
    expect(page.locator("#found")).to_have_attribute("data-moment", latest)
    page.mouse.click(box["x"] + box["width"] / 3, box["y"] + box["height"] / 2)
    expect(page.locator("#found .moment")).to_be_visible()
    expect(page.locator("#found")).not_to_have_attribute("data-moment", latest)
    value, most = int(slider.input_value()), int(slider.get_attribute("max") or 0)
    assert 0.25 < value / most < 0.42
