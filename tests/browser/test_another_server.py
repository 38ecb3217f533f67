"""The console with a server that is generated from a public OpenAPI document of this API. No page
has an error, neither of the console nor of its scripts."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import requests
from django.urls import URLPattern, get_resolver, reverse
from playwright.sync_api import Browser, expect

from tests.browser.conftest import opened
from tests.browser.world import PAGES, QUERIES
from tests.selection import only
from tests.support.another_console import another_console
from tests.support.neon_document import KINDS, Answering, Answers, serving
from tests.support.own_document import DocumentAnswers
from tests.support.stack import Stack

ID = "quiet-heron-12345678"


@dataclass
class Switched:
    """A server that answers as the test chooses, while the console asks."""

    by: Answering | None = None

    def answer(self, method: str, path: str) -> tuple[int, Any]:
        assert self.by
        return self.by.answer(method, path)


@pytest.fixture(scope="module")
def made_of() -> Iterator[tuple[str, Switched]]:
    answers = Switched()
    with serving(answers) as api_url, another_console(api_url) as url:
        yield url, answers


def addresses() -> Iterator[str]:
    for pattern in get_resolver().url_patterns:
        assert isinstance(pattern, URLPattern)
        if pattern.name in PAGES:
            own = {name: 3 if name == "key_id" else ID for name in pattern.pattern.converters}
            query = QUERIES.get(pattern.name, "").format(
                main=ID, branch_id=ID, moment="2026-01-31T12:00Z"
            )
            yield reverse(pattern.name, kwargs=own) + query


def expect_no_errors(browser: Browser, url: str) -> None:
    with opened(browser, url) as page:
        page.goto("/sign-in")
        page.get_by_label("API key").fill("a-key-of-that-server")
        page.get_by_role("button", name="Sign in").click()
        # The console leads an owner of one project directly to that project.
        expect(page.locator("#menu-account")).to_be_visible()
        for address in addresses():
            answer = page.goto(address, wait_until="domcontentloaded")
            assert answer
            # 422: a row of a table cannot be shown without its table.
            assert answer.status in (200, 404, 410, 422), (address, answer.status)
            expect(page.locator("h1").first, address).to_be_visible()
            expect(page.locator("[hx-trigger=load]"), address).to_have_count(0)
            assert "Traceback" not in page.content()


@pytest.mark.parametrize("kind", only({"unforeseen"}, KINDS))
def test_the_console_works_with_neons_document(
    browser: Browser, made_of: tuple[str, Switched], kind: str
) -> None:
    url, answers = made_of
    answers.by = Answers(kind)
    expect_no_errors(browser, url)


@pytest.mark.thorough
@pytest.mark.parametrize("required", [False, True], ids=["whole", "required"])
def test_the_console_works_with_its_own_document(
    browser: Browser, stack: Stack, made_of: tuple[str, Switched], required: bool
) -> None:
    url, answers = made_of
    document = requests.get(f"{stack.api_url}/openapi.json", timeout=30).json()
    answers.by = DocumentAnswers(document, required=required)
    expect_no_errors(browser, url)
