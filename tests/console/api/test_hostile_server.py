"""A hostile server among PERCH_CONSOLE_SERVERS. No page of the console fails, holds markup from the
server, or links elsewhere; and the server gets nothing from other servers' pages."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest

from console.api.bounded_http import MAX_JSON_VALUES, read_json
from tests.console.api.test_outages import IDS, addresses
from tests.console.browser import Browser
from tests.support.hostile_answers import VALUES, HostileAnswers
from tests.support.neon_document import serving
from tests.support.own_document import DocumentAnswers

pytestmark = pytest.mark.slow

LEADS = re.compile("(xlink:)?href|src|(form)?action|data-live|hx-(get|post|put|patch|delete)")
OWN = re.compile(r"(/(?![/\\])|[#?]|$)")
HEADERS = ("Location", "HX-Redirect", "HX-Location", "HX-Push-Url", "HX-Replace-Url")
NEVER_USED = frozenset({"img", "iframe", "object", "embed", "base", "style", "frame"})
LONGEST_PAGE = 8 << 20


class Foreign(HTMLParser):
    """Finds what the console itself would never write into a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in NEVER_USED or (tag == "script" and not dict(attrs).get("src")):
            self.found.append(f"<{tag}>")
        for name, value in attrs:
            if name.startswith("on") or name in ("style", "srcdoc"):
                self.found.append(f"{name} of <{tag}>")
            if LEADS.fullmatch(name) and not OWN.match(value or ""):
                self.found.append(f"{name}={(value or '')[:80]} of <{tag}>")


def problems_of(answer: Any) -> Iterator[str]:
    if answer.status_code == 500:
        yield "500"
    for name in HEADERS:
        if not OWN.match(answer.get(name, "")):
            yield f"{name}: {answer[name][:80]}"
    if answer.get("Content-Type", "").startswith("text/html"):
        yield from Foreign(answer.content.decode()).found
        if len(answer.content) > LONGEST_PAGE:
            yield f"{len(answer.content)} bytes"


# Every third seed. Which field gets which value depends on the seed.
@pytest.mark.thorough
@pytest.mark.parametrize("turn", range(0, len(VALUES), 3))
def test_no_page_fails_or_holds_foreign_markup(document: Any, turn: int, settings: Any) -> None:
    """Django's client raises exceptions that would otherwise become a 500 page."""
    answers = HostileAnswers(DocumentAnswers(document, required=False))
    with serving(answers) as url:
        settings.MANAGEMENT_API_URL = url
        browser = Browser()
        assert browser.post("/sign-in", {"key": "a-key"}).status_code == 302
        answers.turn = turn
        found = {}
        for name, address in addresses(IDS):
            headers = {"HX-Request": "true", "HX-Current-URL": f"http://testserver{address}"}
            answer = browser.get(address, headers=headers if name.endswith("_live") else {})
            if problems := list(problems_of(answer)):
                found[name] = problems[:5]
        assert not found


def test_json_has_a_bounded_number_of_values() -> None:
    assert read_json(b'["\\ud83d\\udc26 \\ud800"]') == ["🐦 \ufffd"]
    for empty in (b"[],", b"{},", b"1,"):
        with pytest.raises(ValueError, match="too many"):
            read_json(b"[" + empty * MAX_JSON_VALUES + b"1]")
    with pytest.raises(RecursionError):
        read_json(b"[" * 100_000)
