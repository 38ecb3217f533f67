"""A real Chromium, and a page in it that tells of every script error and policy violation."""

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from tests.support.stack import Stack, stack

__all__ = ["stack"]

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


def chromium_path() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = (shutil.which(name) for name in names)
    return os.environ.get("PERCH_CHROMIUM") or next((path for path in found if path), None)


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


@pytest.fixture
def page(browser: Browser, stack: Stack) -> Iterator[Page]:
    """A page at the console; the test fails if anything goes wrong in its scripts or policy."""
    wrong: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        # An answer of 4xx to a form is no fault of the page.
        if message.type == "error" and "status of 4" not in message.text:
            wrong.append(message.text)

    context = browser.new_context(
        base_url=stack.console_url,
        viewport={"width": 1280, "height": 900},
        permissions=["clipboard-read", "clipboard-write"],
    )
    opened = context.new_page()
    opened.set_default_timeout(20_000)
    opened.on("console", heard)
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    yield opened
    context.close()
    assert not wrong, wrong
