"""A real Chromium, and a page in it that reports every script error and policy violation."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.support.another_console import another_console
from tests.support.lighthouse import chromium_path
from tests.support.relay import Relay, relay
from tests.support.stack import Stack, deleting_projects, stack, state_dir
from tests.support.waiting import load

__all__ = ["stack", "state_dir"]

NO_BROWSER = (
    "no Chromium found: install one with the system's package manager "
    "(apt-get install chromium), or name one in PERCH_CHROMIUM"
)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="module", autouse=True)
def _leaves_no_projects() -> Iterator[None]:
    with deleting_projects():
        yield


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = chromium_path()
    if path is None:
        if os.environ.get("PERCH_REQUIRE_BROWSER") == "1":
            pytest.fail(NO_BROWSER)
        pytest.skip(NO_BROWSER)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield chromium
        chromium.close()


def new_page(
    browser: Browser, url: str, *, may_fail: bool = False, **context: Any
) -> tuple[Page, list[str]]:
    """Open a page in a context of its own at the console of that address. Yields the page and the
    list of errors in its scripts and violations of its policy. With `may_fail`, errors of the
    network are not listed."""
    wrong: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        # A 4xx answer to a form is not an error of the page.
        is_answer = "status of 4" in message.text
        is_network = may_fail and re.match("Failed to load resource|htmx:", message.text)
        # A page that is left aborts its open requests. Other failures are reported by another event
        # as well.
        is_left = re.match("htmx:(afterRequest|sendAbort)", message.text)
        if message.type == "error" and not (is_answer or is_network or is_left):
            wrong.append(message.text)

    page = browser.new_context(
        base_url=url,
        viewport={"width": 1280, "height": 900},
        permissions=["clipboard-read", "clipboard-write"],
        **context,
    ).new_page()
    page.set_default_timeout(20_000 * load())
    expect.set_options(timeout=5_000 * load())
    page.on("console", heard)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    return page, wrong


@contextmanager
def opened(browser: Browser, url: str, *, may_fail: bool = False, **context: Any) -> Iterator[Page]:
    """Do the same as `new_page`, and fail the test if anything went wrong in the page."""
    page, wrong = new_page(browser, url, may_fail=may_fail, **context)
    yield page
    page.context.close()
    assert not wrong, wrong


@pytest.fixture
def page(browser: Browser, stack: Stack) -> Iterator[Page]:
    """A page at the console."""
    with opened(browser, stack.console_url) as page:
        yield page


@pytest.fixture
def rough_page(browser: Browser, stack: Stack) -> Iterator[Page]:
    """A page whose network may fail."""
    with opened(browser, stack.console_url, may_fail=True) as page:
        yield page


def copied(page: Page) -> str:
    """Return what the button that was just pressed has copied."""
    expect(page.locator("#announce")).to_have_text("Copied")
    return str(page.evaluate("navigator.clipboard.readText()"))


@dataclass
class Elsewhere:
    """A console of its own, for a server of this API that the test controls."""

    page: Page
    relay: Relay


@pytest.fixture(scope="module")
def _console_at_relay(stack: Stack) -> Iterator[tuple[str, Relay]]:
    with relay(stack.api_url) as between, another_console(between.url) as url:
        yield url, between


@pytest.fixture
def elsewhere(browser: Browser, _console_at_relay: tuple[str, Relay]) -> Iterator[Elsewhere]:
    url, between = _console_at_relay
    with opened(browser, url, may_fail=True) as page:
        yield Elsewhere(page, between)
    between.be_well()
