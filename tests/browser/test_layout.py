"""Pages are quick to read: how much is on a screen, what the title says, and where the focus is."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.looking import focused
from tests.browser.test_journey import sign_in
from tests.selection import first_of
from tests.support.project import Project
from tests.support.stack import Stack

PHONE = {"width": 390, "height": 844}
# CSS pixels: of the top of a project's pages on a phone, and of what is to be touched.
HEADER, TARGET = 200, 24


@pytest.fixture(scope="module")
def shop(stack: Stack) -> Project:
    made = Project.create(stack, stack.client(), name="shop")
    for number in range(35):
        made.client.patch(made.path, {"project": {"name": f"shop {number}"}})
    return made


def test_thirty_things_are_on_one_screen(page: Page, shop: Project) -> None:
    sign_in(page, shop.client.key)
    page.goto("/activity")
    lines = page.locator(".activity > li")
    expect(lines.first).to_be_visible()
    on_screen = lines.evaluate_all(
        "all => all.filter((one) => one.getBoundingClientRect().bottom <= innerHeight).length"
    )
    assert on_screen >= 30
    lowest = page.locator(".activity > li > .about > a").evaluate_all(
        "all => Math.min(...all.map((one) => one.getBoundingClientRect().height))"
    )
    assert lowest >= 24
    # The details are unfolded beneath the line.
    lines.first.locator("summary").click()
    expect(lines.first.locator(".changes")).to_contain_text("shop 33 → shop 34")
    expect(lines.first.locator("details")).to_contain_text("by you from 127.0.0.1")


def test_an_endpoint_is_above_the_fold_of_a_phone(page: Page, shop: Project) -> None:
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    sign_in(page, shop.client.key)
    page.goto(shop.path)
    top, tabs = page.evaluate(
        """() => [".crumbs", ".tabs"].map((part) =>
            document.querySelector(part).getBoundingClientRect())
            .map((box, place) => (place ? box.bottom : box.top))"""
    )
    assert tabs - top <= HEADER
    card = page.locator(".endpoints tbody tr").first.bounding_box()
    assert card is not None
    # Three lines, of which the last has buttons.
    assert card["height"] <= 130
    assert card["y"] + card["height"] <= PHONE["height"]
    page.goto(f"{shop.path}/settings")
    # Scrolling ends at whole pixels.
    expect(page.locator(".tabs [aria-current]")).to_be_in_viewport(ratio=0.99)


def test_tabs_fade_out_where_more_are_hidden(page: Page, shop: Project) -> None:
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    sign_in(page, shop.client.key)
    page.goto(shop.path)
    tabs = page.locator(".tabs")
    expect(tabs).to_have_attribute("data-more", "")
    tabs.evaluate("one => one.scrollTo(1000, 0)")
    expect(tabs).not_to_have_attribute("data-more", "")
    tabs.evaluate("one => one.scrollTo(0, 0)")
    expect(tabs).to_have_attribute("data-more", "")
    page.set_viewport_size({"width": 1280, "height": 900})
    expect(tabs).not_to_have_attribute("data-more", "")


@pytest.mark.parametrize(
    "place", first_of(["", "/branches/{branch}", "/branches", "/endpoints/{endpoint}"])
)
def test_menus_are_within_a_narrow_window(page: Page, shop: Project, place: str) -> None:
    sign_in(page, shop.client.key)
    page.goto(shop.path + place.format(branch=shop.branch_id, endpoint=shop.endpoint_id))
    menus = page.locator("main details.menu")
    assert menus.count()
    for width in (320, 390):
        page.set_viewport_size({"width": width, "height": 844})
        for menu in menus.all():
            menu.locator("summary").click()
            box = menu.locator("ul").bounding_box()
            assert box
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
            menu.locator("summary").click()


def test_the_title_tells_the_state(page: Page, shop: Project) -> None:
    shop.done(shop.start())
    sign_in(page, shop.client.key)
    page.goto(f"{shop.path}/endpoints/{shop.endpoint_id}")
    expect(page).to_have_title(f"Active · {shop.endpoint_id} · Perch")
    expect(page.locator(".tabs [aria-current]")).to_have_text("Endpoints")
    with shop.locked():
        restart = shop.client.post(shop.endpoint_path(rest="/restart"))["operations"]
        expect(page).to_have_title(f"● Suspending… · {shop.endpoint_id} · Perch")
        page.goto(f"{shop.path}/operations/{restart[0]['id']}")
        expect(page).to_have_title(re.compile(r"^● .* · Restart endpoint ep-.* · Perch$"))
        expect(page.locator(".tabs [aria-current]")).to_have_text("Operations")
    expect(page).to_have_title(re.compile("^OK · Restart endpoint"), timeout=20_000)


def test_a_dialog_begins_at_its_first_field_or_at_cancel(page: Page, shop: Project) -> None:
    shop.done(shop.start())
    sign_in(page, shop.client.key)
    page.goto(f"{shop.path}/endpoints/{shop.endpoint_id}")
    dialog = page.locator("dialog[open]")
    page.locator(f"[id='power-{shop.endpoint_id}']").click()
    expect(dialog.get_by_role("button", name="Suspend")).not_to_have_class("dangerous")
    assert focused(page) == "Cancel"
    page.keyboard.press("Escape")
    page.get_by_label(f"More actions for {shop.endpoint_id}").click()
    page.locator(f"[id='delete-{shop.endpoint_id}']").click()
    expect(dialog.get_by_text("This permanently deletes:")).to_be_visible()
    expect(dialog.get_by_label("Type its id to confirm")).to_be_focused()


@pytest.mark.parametrize("path", first_of(["/branches", "", "/events", "/endpoints/{endpoint}"]))
def test_what_is_to_be_touched_is_large_enough(page: Page, shop: Project, path: str) -> None:
    sign_in(page, shop.client.key)
    page.goto(shop.path + path.format(endpoint=shop.endpoint_id))
    small = page.evaluate(
        """least => [...document.querySelectorAll("button, summary, [role=button], .tabs a")]
            .filter((one) => one.checkVisibility())
            .map((one) => [one, one.getBoundingClientRect()])
            .filter(([one, box]) => Math.min(box.width, box.height) < least - 0.1)
            .map(([one, box]) => `${box.width}x${box.height} ${one.outerHTML.slice(0, 120)}`)""",
        TARGET,
    )
    assert not small
