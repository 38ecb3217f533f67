"""`python -m tests.screenshots [NAME …]`: takes a picture of every page of the console, light and
dark, on a phone and on a laptop. The console belongs to a service of its own with examples. The
pictures are in `screenshots/`, which git ignores, and those of the README in `docs/images/`.

The pages are those of `console.urls`, so that a new page is included by its address. Their states
are those of `tests.browser.world`, and scenes without an address are in `tests.support.shown`. With
names, only pages, states and scenes whose names contain one of them are taken.
"""

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal

from django.urls import URLPattern, get_resolver, reverse
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.conftest import ARGUMENTS
from tests.browser.world import STATES, State
from tests.support import shown
from tests.support.another_console import another_console
from tests.support.lighthouse import chromium_path
from tests.support.relay import Relay, relay
from tests.support.shown import World
from tests.support.stack import ROOT, new_state_dir, running_stack

FOLDER, README = ROOT / "screenshots", ROOT / "docs" / "images"
SIZES = {"phone": (390, 844), "laptop": (1280, 900)}
THEMES: Sequence[Literal["light", "dark"]] = ("light", "dark")
# The README's pictures: the name of each picture, and of its page.
IN_README = {
    "branches.png": "branches",
    "endpoint.png": "endpoint",
    "operations.png": "operations",
    "query.png": "query",
}


def pages(ids: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the address of each page for whose address all ids are known."""
    for pattern in get_resolver().url_patterns:
        assert isinstance(pattern, URLPattern)
        name, names = pattern.name, list(pattern.pattern.converters)
        if not name or name == "sign_in" or name.endswith(("_live", "changes")):
            continue
        # These need a table: see the states.
        if name.startswith("table_"):
            continue
        if missing := [one for one in names if not ids.get(one)]:
            print(f"  no picture of {name}: what is {', '.join(missing)}?")
            continue
        address = reverse(name, kwargs={one: ids[one] for one in names})
        of_role = name.startswith("role_") and name != "role_create"
        of_database = name.startswith("database_") and name != "database_create"
        # Pages with a name in the query.
        query = f"?name={ids['role_name' if of_role else 'name']}" if of_role or of_database else ""
        yield name, address + query


class Photographer:
    """Takes pictures in one theme and size."""

    def __init__(
        self, browser: Browser, world: World, theme: Literal["light", "dark"], size: str
    ) -> None:
        self.browser = browser
        self.world = world
        self.theme = theme
        self.size = size

    @contextmanager
    def page(self, key: str, url: str = "") -> Iterator[Page]:
        """Open a page that is signed in, at the console of that address."""
        width, height = SIZES[self.size]
        context = self.browser.new_context(
            base_url=url or self.world.stack.console_url,
            viewport={"width": width, "height": height},
            color_scheme=self.theme,
            reduced_motion="reduce",
            service_workers="block",
        )
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.goto("/sign-in")
        if key:
            page.get_by_label("API key").fill(key)
            page.get_by_role("button", name="Sign in").click()
            page.wait_for_url("**/")
        yield page
        context.close()

    def take(self, wanted: list[str], console_at_relay: str, between: Relay) -> None:
        def is_wanted(name: str) -> bool:
            return not wanted or any(one in name for one in wanted)

        with self.page("") as page:
            if is_wanted("sign_in"):
                self.shoot(page, "sign_in")
        with self.page(self.world.client.key) as page:
            for name, address in pages(self.world.ids):
                if is_wanted(name):
                    self.visit(page, name, address)
            for scene in shown.SCENES:
                if is_wanted(scene.__name__):
                    scene(page, self.world, partial(self.shoot, page))
        keys = {"operator": self.world.client.key, "newcomer": self.world.empty_key, "visitor": ""}
        for who, key in keys.items():
            with self.page(key) as page:
                for name, state in STATES.items():
                    if state.who == who and is_wanted(name):
                        self.show(page, name, state)
        for scene_at_relay in (shown.monitored, shown.away):
            if is_wanted(scene_at_relay.__name__):
                with self.page(self.world.client.key, console_at_relay) as page:
                    scene_at_relay(page, self.world, between, partial(self.shoot, page))

    def visit(self, page: Page, name: str, address: str) -> None:
        answer = page.goto(address)
        is_page = answer is not None and "text/html" in (answer.header_value("content-type") or "")
        if not is_page or answer is None or answer.status == 405:
            # It answers only to a button, or is not a page.
            return
        if answer.status >= 400:
            print(f"  {name}: {answer.status}")
        if name == "query":
            page.get_by_label("SQL", exact=True).fill(shown.QUERY)
            page.locator("#run").click()
            page.locator(".cells td").first.wait_for()
        self.shoot(page, name)

    def show(self, page: Page, name: str, state: State) -> None:
        try:
            page.goto(state.address.format_map(self.world.ids))
        except KeyError:
            # A branch of a long name, for example, is in the world of the tests only.
            return
        state.act(page)
        self.shoot(page, name.replace(" ", "_"))

    def shoot(self, page: Page, name: str) -> None:
        # Wait for what the page fetches by itself.
        expect(page.locator("[hx-trigger=load], .htmx-request")).to_have_count(0)
        page.evaluate("document.fonts.ready")
        page.screenshot(
            path=FOLDER / f"{name}-{self.theme}-{self.size}.png",
            # A dialog is in the middle of the window.
            full_page=not page.locator("dialog[open]").count(),
        )
        for picture, of_page in IN_README.items():
            if of_page == name and (self.theme, self.size) == ("light", "laptop"):
                page.screenshot(path=README / picture)


def main(wanted: list[str]) -> None:
    path = chromium_path()
    if path is None:
        sys.exit("no Chromium found")
    if not wanted:
        shutil.rmtree(FOLDER, ignore_errors=True)
    for folder in (FOLDER, README):
        folder.mkdir(parents=True, exist_ok=True)
    with (
        new_state_dir() as state_dir,
        running_stack(state_dir) as stack,
        relay(stack.api_url) as between,
        another_console(between.url) as console_at_relay,
        sync_playwright() as playwright,
    ):
        world = shown.new_world(stack)
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        for theme in THEMES:
            for size in SIZES:
                Photographer(browser, world, theme, size).take(wanted, console_at_relay, between)
        browser.close()
    print(f"{len(list(FOLDER.glob('*.png')))} pictures in {FOLDER.relative_to(ROOT)}/")


if __name__ == "__main__":
    main(sys.argv[1:])
