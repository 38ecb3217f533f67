"""Open pages, and a form with typed text, while the API goes through each kind of outage and
recovers. The page shows one line in place, loses nothing, and is live afterwards."""

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import new_page
from tests.browser.open_pages import SOON
from tests.browser.test_journey import assert_not_reloaded, hide, mark, sign_in
from tests.selection import only
from tests.support.another_console import another_console
from tests.support.project import Project
from tests.support.relay import Relay, relay
from tests.support.stack import Stack

# Seconds that the console waits for the API, and a delay that is longer.
PATIENCE, TOO_LATE = 2.0, 4.5
# Milliseconds after which a page requests a region again that could not be read.
AGAIN = 5_000
# Milliseconds within which all pages, which renew themselves at once, show a change.
ALL_SOON = 3 * SOON


def refuses(status: int) -> Callable[[Relay], None]:
    return lambda api: setattr(api, "refuses", status)


def says(
    body: bytes, *, kind: str = "application/json", status: int = 200
) -> Callable[[Relay], None]:
    def begin(api: Relay) -> None:
        api.says, api.kind, api.status = body, kind, status

    return begin


HTML = b"<!doctype html><title>502 Bad Gateway</title><script>alert(1)</script>"
# How each outage begins, and a pattern of what the page shows in place.
OUTAGES: dict[str, tuple[Callable[[Relay], None], str]] = {
    "away": (lambda api: setattr(api, "is_away", True), "Cannot reach|Lost the connection"),
    "too slow": (lambda api: setattr(api, "delay", TOO_LATE), "did not respond in time"),
    "400": (refuses(400), "Invalid request"),
    "401": (refuses(401), "Sign in again"),
    "403": (refuses(403), "may not do that"),
    "409": (refuses(409), "Already exists"),
    "412": (refuses(412), "refused"),
    "422": (refuses(422), "Not allowed"),
    "423": (refuses(423), "Other operations are in progress"),
    "429": (refuses(429), "Too many requests"),
    "500": (refuses(500), "failed"),
    "HTML": (says(HTML, kind="text/html"), "sent an unexpected response"),
    "HTML with 404": (
        says(HTML, kind="text/html", status=404),
        "Not found|Not supported",
    ),
    "broken JSON": (says(b'{"project": {"id": "p"'), "sent an unexpected response"),
    "wrong types": (
        says(b'{"project": 1, "projects": 2, "branches": 3}'),
        "sent an unexpected response",
    ),
    "closed half-way": (lambda api: setattr(api, "breaks_off", True), "Lost the connection"),
}
# One of each kind: unreachable, failing, unreadable.
USUAL = ("away", "500", "broken JSON")


class Scene:
    """Open pages of a console for a server that the test controls."""

    def __init__(self, console_url: str, api: Relay, shop: Project, pages: dict[str, Page]) -> None:
        self.console_url = console_url
        self.api = api
        self.shop = shop
        self.pages = pages

    @property
    def project(self) -> Page:
        return self.pages["project"]

    def renew(self) -> None:
        """Make all pages renew themselves. Does not wait for the result."""
        for page in self.pages.values():
            page.evaluate("Perch.renew()")

    def wait(self) -> None:
        """Advance the pages' clocks until they request a region again."""
        for page in self.pages.values():
            page.clock.run_for(AGAIN + 500)


@pytest.fixture(scope="module")
def _scene(browser: Browser, stack: Stack) -> Iterator[Scene]:
    shop = Project.create(stack, stack.client(), name="shop")
    shop.new_branch_id(name="free")
    chain = shop.operations()[0]["chain_id"]
    asked = {"url": "https://hooks.invalid/x", "event_types": ["project.updated"]}
    webhook = shop.client.post("/webhooks", {"webhook": asked})["webhook"]
    paths = {
        "project": shop.path,
        "endpoint": f"{shop.path}/endpoints/{shop.endpoint_id}",
        "branches": f"{shop.path}/branches",
        "branch": f"{shop.path}/branches/{shop.branch_id}",
        "operations": f"{shop.path}/operations",
        "run": f"{shop.path}/runs/{chain}",
        "timeline": f"{shop.path}/timeline",
        "events": f"{shop.path}/events",
        "dashboard": "/",
        "activity": "/activity",
        "webhook": f"/webhooks/{webhook['id']}",
    }
    with (
        relay(stack.api_url) as api,
        another_console(api.url, MANAGEMENT_API_TIMEOUT=str(PATIENCE)) as url,
    ):
        made: dict[str, Page] = {}
        for name, path in paths.items():
            # A context of its own for each page, because a browser has only six connections per
            # host.
            page, _ = new_page(browser, url, may_fail=True)
            page.clock.install()
            sign_in(page, shop.client.key)
            page.goto(path)
            mark(page)
            made[name] = page
        yield Scene(url, api, shop, made)
        for page in made.values():
            page.context.close()


@pytest.fixture
def scene(_scene: Scene) -> Iterator[Scene]:
    yield _scene
    _scene.project.keyboard.press("Escape")


@contextmanager
def during_outage(scene: Scene, begin: Callable[[Relay], None]) -> Iterator[None]:
    begin(scene.api)
    try:
        yield
    finally:
        scene.api.be_well()


def expect_whole(scene: Scene) -> None:
    """Check that no page shows a problem or waits for anything."""
    for name, page in scene.pages.items():
        expect(page.locator("#poll [role=alert]"), name).to_have_count(0)
        expect(page.locator(".notice.failure"), name).to_have_count(0)
        expect(page.locator("#trouble"), name).to_be_hidden()
        expect(page.locator(".htmx-request"), name).to_have_count(0)
        assert_not_reloaded(page)


def expect_alive(scene: Scene) -> None:
    """Check that changes made elsewhere appear."""
    state = scene.project.locator("#live .state").first
    for change, word in ((scene.shop.suspend, "Idle"), (scene.shop.start, "Active")):
        if state.text_content() != word:
            scene.shop.done(change())
            expect(state).to_have_text(word)
            return


def type_something(scene: Scene) -> str:
    """Type into a form of the project's page. Returns what was typed."""
    page = scene.project
    # Settings that the server does not return are not offered, except for these.
    typed = f"work_mem = {random.randint(100, 9_999)}kB"
    page.get_by_label(f"More actions for {scene.shop.endpoint_id}").click()
    page.locator(f"[id='settings-{scene.shop.endpoint_id}']").click()
    page.locator("dialog[open]").get_by_label("Postgres settings").fill(typed)
    return typed


def expect_typed(page: Page, typed: str) -> None:
    expect(page.locator("dialog[open]").get_by_label("Postgres settings")).to_have_value(typed)


@pytest.mark.thorough
@pytest.mark.parametrize("outage", only(USUAL, OUTAGES))
def test_each_outage_recovers(scene: Scene, outage: str) -> None:
    begin, words = OUTAGES[outage]
    page = scene.project
    dialog = page.locator("dialog[open]")
    headings = {name: one.locator("h1").inner_text() for name, one in scene.pages.items()}
    typed = type_something(scene)
    with during_outage(scene, begin):
        scene.renew()
        for name, one in scene.pages.items():
            line = one.locator("#poll [role=alert]")
            expect(line, name).to_contain_text(re.compile(words))
            expect(line, name).to_have_count(1)
            expect(one.locator("h1"), name).to_have_text(headings[name])
            expect(one.locator(".notice.failure"), name).to_have_count(0)
        # It is announced once, however long it lasts.
        scene.wait()
        expect(page.locator("#poll [role=alert]")).to_have_count(1)
        expect_typed(page, typed)
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.get_by_role("alert")).to_have_count(1)
        expect(dialog.get_by_role("alert")).to_contain_text(
            re.compile(f"{words}|refused by the test", re.IGNORECASE)
        )
        expect_typed(page, typed)
        expect(dialog.get_by_role("button", name="Save")).to_be_enabled()
        assert "Traceback" not in page.content()
    scene.wait()
    expect_typed(page, typed)
    page.keyboard.press("Escape")
    expect_whole(scene)
    expect_alive(scene)


@pytest.mark.thorough
def test_a_page_recovers_from_a_mistaken_404(scene: Scene) -> None:
    with during_outage(scene, refuses(404)):
        scene.renew()
        for name, page in scene.pages.items():
            # For a page that a server may not offer, the message says that, and the page asks
            # again.
            gone = page.locator("#main.gone").or_(page.get_by_text("Not supported by this server"))
            expect(gone.first, name).to_be_visible()
        scene.wait()
        page = scene.pages["endpoint"]
        expect(page.locator("#main.gone")).to_be_visible()
        expect(page.locator("#poll [role=alert]")).to_have_count(1)
    # At once if its page is shown again, otherwise within a minute.
    hide(page)
    page.evaluate(
        """() => {
            Object.defineProperty(document, "hidden", {value: false});
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
    )
    expect(page.locator("#main.gone")).to_have_count(0)
    for name, page in scene.pages.items():
        page.clock.run_for(61_000)
        expect(page.locator("#main.gone"), name).to_have_count(0)
        expect(page.locator("main [inert]"), name).to_have_count(0)
    expect_whole(scene)
    expect_alive(scene)


# Where each page shows an endpoint's state.
SEEN = {
    "project": "#live .endpoints .state",
    "endpoint": "#live .about .state",
    "branch": ".perching .state",
    "branches": "#live .branches .perched",
    "dashboard": "#live .projects .state",
}
# Where the history is shown, the newest entry at the top.
TOLD = {
    "operations": "#live .runs tbody tr",
    "events": "#live .activity > li",
    "activity": "#live .activity > li",
}


@pytest.mark.thorough
def test_a_change_made_elsewhere_appears_on_every_page(scene: Scene) -> None:
    scene.shop.done(scene.shop.start())
    for name, where in SEEN.items():
        expect(scene.pages[name].locator(where).first, name).to_contain_text("Active")
    newest = {name: scene.pages[name].locator(where).first for name, where in TOLD.items()}
    before = {name: row.inner_text() for name, row in newest.items()}
    scene.shop.suspend()
    for name, where in SEEN.items():
        expect(scene.pages[name].locator(where).first, name).to_contain_text(
            "Idle", timeout=ALL_SOON
        )
    for name, row in newest.items():
        expect(row, name).to_contain_text(re.compile("Suspend|sleep|idle"), timeout=ALL_SOON)
        assert row.inner_text() != before[name]
    for page in scene.pages.values():
        assert_not_reloaded(page)
