"""What tests look at in a page beside its words: accessibility, focus, bytes on the wire, width."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

# Of the rules by which axe looks; its "best practices" are in it.
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def expect_accessible(page: Page) -> None:
    """axe finds nothing wrong in the page as it is now."""
    found = Axe().run(page, options={"runOnly": RULES, "resultTypes": ["violations"]})
    problems = []
    for one in found.response["violations"]:
        where = (f"    {node['html'][:200]}" for node in one["nodes"])
        problems.append("\n".join([f"{one['id']}: {one['help']}", *where]))
    assert not problems, f"{page.url}\n" + "\n".join(problems)


def expect_fits(page: Page) -> None:
    """Nothing is wider than the window, and no sheet is cut off."""
    too_wide = page.evaluate(
        """() => [...document.querySelectorAll("body *")]
            .filter((one) => one.checkVisibility())
            .filter((one) => !one.closest("svg, .unseen, .skip, .tabs, .cells"))
            .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
            .map((one) => one.outerHTML.slice(0, 150))"""
    )
    assert not too_wide, (page.url, page.viewport_size, too_wide[:3])
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), page.url
    # One part's rule has made another's table something else.
    odd = page.evaluate(
        """() => [...document.querySelectorAll("table.rows")]
            .filter((one) => one.checkVisibility())
            .filter((one) => !["table", "block"].includes(getComputedStyle(one).display))
            .map((one) => one.className)"""
    )
    assert not odd, (page.url, odd)


def focused(page: Page) -> str:
    """What has the focus, by its id or else by its name or words; "" where nothing has."""
    return page.evaluate(  # type: ignore[no-any-return]
        """() => {
            const one = document.activeElement;
            if (!one || one === document.body) return "";
            return one.id || one.getAttribute("aria-label") || one.textContent.trim();
        }"""
    )


def tab_to(page: Page, name: str, *, most: int = 200) -> None:
    """Press Tab until what `focused` calls so has the focus."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if focused(page) == name:
            return
    raise AssertionError(f"{name} cannot be reached by Tab")


@dataclass
class Wire:
    """What went over the wire while it was listened to: each answer, with its bytes."""

    # (the address's path, the status, bytes of the answer with its headers)
    answers: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(size for _, _, size in self.answers)

    def to(self, words: str) -> list[tuple[str, int, int]]:
        return [answer for answer in self.answers if words in answer[0]]


@contextmanager
def wire(page: Page) -> Iterator[Wire]:
    """Listen to what the page's answers cost. Of a stream only its beginning is counted."""
    heard = Wire()
    session = page.context.new_cdp_session(page)
    begun: dict[str, tuple[str, int]] = {}

    def on_response(event: dict[str, Any]) -> None:
        answer = event["response"]
        if answer["url"].startswith("http") and not answer.get("fromDiskCache"):
            path = "/" + answer["url"].split("/", 3)[3]
            begun[event["requestId"]] = (path, answer["status"])
            if answer["mimeType"] == "text/event-stream":
                heard.answers.append((path, answer["status"], int(answer["encodedDataLength"])))

    def on_finished(event: dict[str, Any]) -> None:
        if event["requestId"] in begun:
            path, status = begun.pop(event["requestId"])
            heard.answers.append((path, status, int(event["encodedDataLength"])))

    session.on("Network.responseReceived", on_response)
    session.on("Network.loadingFinished", on_finished)
    session.send("Network.enable")
    yield heard
    session.detach()


@contextmanager
def cut_off(page: Page) -> Iterator[None]:
    """The network is gone for the page, streams that are open included."""
    session = page.context.new_cdp_session(page)
    gone = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    session.send("Network.enable")
    session.send("Network.emulateNetworkConditions", gone)
    try:
        yield
    finally:
        back = gone | {"offline": False, "downloadThroughput": -1, "uploadThroughput": -1}
        session.send("Network.emulateNetworkConditions", back)
        session.detach()
