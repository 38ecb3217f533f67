"""Every page, dialog and state of the console, with and without scripts, is accessible: on any
screen, in light and dark, with larger text, by the keyboard alone.

By default each page that no dialog shows is visited once, on a phone and on a laptop. All other
visits are thorough.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, CDPSession, Page, expect

from tests.browser.conftest import new_page
from tests.browser.looking import (
    FEWER,
    WIDTHS_OF,
    expect_accessible,
    expect_clear,
    expect_fits,
    expect_good,
    expect_styled,
)
from tests.browser.test_journey import sign_in
from tests.browser.world import NO_PAGES, OPENED_ON, PAGES, STATES, State, Who, World, names, world
from tests.selection import first_of
from tests.support.stack import Stack


@pytest.fixture(scope="module")
def all_there(stack: Stack) -> Iterator[World]:
    with world(stack) as found:
        yield found


@dataclass
class Visit:
    """A page in which nothing may go wrong, and the switch for its scripts."""

    page: Page
    wrong: list[str]
    session: CDPSession

    def switch(self, *, scripts: bool) -> None:
        """Switch scripts on or off from the next page on. The checks need scripts for axe, also on
        pages that are loaded without them."""
        off = {"value": not scripts}
        self.session.send("Emulation.setScriptExecutionDisabled", off)


class Visits:
    """One visit for each kind of reader, used repeatedly."""

    def __init__(self, browser: Browser, there: World) -> None:
        self._browser = browser
        self._there = there
        self._made: dict[Who, Visit] = {}

    @contextmanager
    def by(self, who: Who) -> Iterator[Visit]:
        if who not in self._made:
            page, wrong = new_page(self._browser, self._there.stack.console_url)
            if key := self._there.keys[who]:
                sign_in(page, key)
            self._made[who] = Visit(page, wrong, page.context.new_cdp_session(page))
        visit = self._made[who]
        visit.wrong.clear()
        yield visit
        assert not visit.wrong, visit.wrong

    def end(self) -> None:
        for visit in self._made.values():
            visit.page.context.close()


@pytest.fixture(scope="module")
def visits(browser: Browser, all_there: World) -> Iterator[Visits]:
    made = Visits(browser, all_there)
    yield made
    made.end()


def test_every_address_of_the_console_is_visited() -> None:
    assert set(names()) == set(PAGES) | set(NO_PAGES)
    assert set(OPENED_ON) <= set(PAGES)


def go(page: Page, there: World, state: State) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(there.fill(state.address))
    # Wait for what scripts fetch after the page has loaded.
    expect(page.locator("[hx-trigger=load]")).to_have_count(0)


def state_of(there: World, place: str) -> State:
    """Return the state of that name, or the page of the address of that name."""
    return STATES[place] if place in STATES else State(there.address(place))


@pytest.mark.parametrize("place", [name for name in PAGES if name not in OPENED_ON])
def test_pages_are_accessible_on_a_phone_and_a_laptop(
    visits: Visits, all_there: World, place: str
) -> None:
    state = state_of(all_there, place)
    with visits.by(state.who) as visit:
        go(visit.page, all_there, state)
        state.act(visit.page)
        expect_fits(visit.page, (390, 1280))
        expect_styled(visit.page)
        expect_accessible(visit.page)
        expect_clear(visit.page)


@pytest.mark.thorough
@pytest.mark.parametrize("place", [*PAGES, *STATES])
def test_pages_are_accessible_with_scripts(visits: Visits, all_there: World, place: str) -> None:
    state = state_of(all_there, place)
    with visits.by(state.who) as visit:
        go(visit.page, all_there, state)
        state.act(visit.page)
        expect_good(visit.page, WIDTHS_OF)


# Keeps the look of a page without scripts while axe runs.
KEEP_UNSCRIPTED = """() => {
    if (!matchMedia("(scripting: none)").matches) throw new Error("scripts run");
    for (const { cssRules } of document.styleSheets) {
        for (const { media } of cssRules) {
            if (!media?.mediaText.includes("scripting")) continue;
            media.mediaText = matchMedia(media.mediaText).matches ? "all" : "not all";
        }
    }
}"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "place",
    first_of(
        [*PAGES, *(name for name, state in STATES.items() if not state.needs_script)], count=5
    ),
)
def test_pages_are_accessible_without_scripts(visits: Visits, all_there: World, place: str) -> None:
    state = state_of(all_there, place)
    with visits.by(state.who) as visit:
        page = visit.page
        visit.switch(scripts=False)
        try:
            page.goto(all_there.fill(state.address))
            state.act(page)
            if state.is_left:
                # A request may still be under way: its page is without scripts too.
                page.wait_for_load_state("networkidle")
            page.evaluate(KEEP_UNSCRIPTED)
        finally:
            visit.switch(scripts=True)
        expect_fits(page, FEWER)
        expect_accessible(page)


@pytest.mark.parametrize("form", first_of(OPENED_ON, count=3))
def test_forms_are_accessible_as_dialogs(visits: Visits, all_there: World, form: str) -> None:
    with visits.by("operator") as visit:
        page, where = visit.page, OPENED_ON[form]
        go(page, all_there, State(where) if "/" in where else state_of(all_there, where))
        path = all_there.address(form).partition("?")[0]
        asks = f"[hx-get='{path}'], [hx-get^='{path}?']"
        opener = page.locator("[hx-target='#dialog']").and_(page.locator(asks)).first
        menu = opener.locator("xpath=ancestor::details/summary")
        if menu.count():
            menu.focus()
            page.keyboard.press("Enter")
            items = menu.locator("xpath=..").locator("li :is(a, button)").count()
            for _ in range(items):
                page.keyboard.press("Tab")
                if opener.evaluate("one => one === document.activeElement"):
                    break
            expect(opener).to_be_focused()
        else:
            opener.focus()
        page.keyboard.press("Space" if opener.get_attribute("role") else "Enter")
        dialog = page.locator("dialog[open]")
        expect(dialog).to_be_visible()
        expect(dialog.locator(":focus")).to_have_count(1)
        expect_good(page, {"200%": (320,), "": FEWER})
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        expect(menu if menu.count() else opener).to_be_focused()
