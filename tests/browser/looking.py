"""What tests check in a page besides its words: accessibility, focus, bytes on the wire, width."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

from tests.support.stack import ROOT

STATIC = ROOT / "static"

# The rules that axe checks, including its "best practices".
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
WIDTHS = (320, 390, 600, 768, 821, 900, 1024, 1100, 1280, 1920, 2560)
# By text size. `FEWER` is for dialogs, and for what scripts do not change.
WIDTHS_OF = {"200%": (320, 390, 768, 1280), "": WIDTHS}
FEWER = (320, 390, 768, 1024, 1280, 1920)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def expect_accessible(page: Page) -> None:
    """Check that axe finds no violation in the page as it is now; if a dialog is open, only in
    that."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    found = page.evaluate(
        """async (rules) => {
            const what = document.querySelector("dialog[open]") ?? document;
            return (await axe.run(what, {runOnly: rules, resultTypes: ["violations"]})).violations;
        }""",
        RULES,
    )
    problems = []
    for one in found:
        where = (f"    {node['html'][:200]}" for node in one["nodes"])
        problems.append("\n".join([f"{one['id']}: {one['help']}", *where]))
    assert not problems, f"{page.url}\n" + "\n".join(problems)


# Elements that are wider than the window, controls that begin left of the box that they are in, and
# tables that a part's style no longer lays out as a table.
TOO_WIDE = """() => [
    ...[...document.querySelectorAll("body *")]
        .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
        .filter((one) => !one.closest(
            "svg, .unseen, .skip, .tabs, .cells, .points, .diff, .lane .label"))
        .filter((one) => one.checkVisibility())
        .map((one) => one.outerHTML.slice(0, 150)),
    ...[...document.querySelectorAll("main :is(a, button, input, select), dialog :is(a, button)")]
        .filter((one) => one.getBoundingClientRect().left <
            one.closest(".form, .sheet, dialog, main").getBoundingClientRect().left - 1)
        .filter((one) => !one.closest("svg, .unseen, .tabs, .cells, .points, .diff"))
        .filter((one) => one.checkVisibility())
        .map((one) => `too far left: ${one.outerHTML.slice(0, 150)}`),
    ...[...document.querySelectorAll("table.rows")]
        .filter((one) => !["table", "block"].includes(getComputedStyle(one).display))
        .filter((one) => one.checkVisibility())
        .map((one) => `a table that is none: ${one.className}`),
    ...(document.documentElement.scrollWidth > innerWidth ? [`the page as a whole: ${
        [...document.querySelectorAll("body *")]
            .filter((one) => one.getBoundingClientRect().right > innerWidth)
            .map((one) => one.outerHTML.slice(0, 50)).slice(-5).join(", ")}`] : []),
]"""


def expect_fits(page: Page, widths: Sequence[int]) -> None:
    """Check at each width that nothing is wider than the window and that no sheet is cut off."""
    # The browser's own command takes half the time of set_viewport_size.
    session = page.context.new_cdp_session(page)
    screen = {"height": 900, "deviceScaleFactor": 1, "mobile": False}
    wrong = []
    for width in widths:
        session.send("Emulation.setDeviceMetricsOverride", {"width": width, **screen})
        at, found = page.evaluate(f"[innerWidth, ({TOO_WIDE})()]")
        assert at == width
        if found:
            wrong.append((width, found[:3]))
    session.detach()
    page.set_viewport_size({"width": 1280, "height": 900})
    assert not wrong, (page.url, wrong)


@cache
def _classes_by_sheet() -> dict[str, set[str]]:
    """Return the classes that each stylesheet of the console has rules for, by the sheet's name."""
    found = defaultdict[str, set[str]](set)
    for path in STATIC.rglob("*.css"):
        folder = path.parent.relative_to(STATIC)
        name = "css" if folder.name in ("", "vendor") else f"{folder}.css"
        found[name] |= set(re.findall(r"\.(-?[a-zA-Z][\w-]*)", path.read_text()))
    return found


def expect_styled(page: Page) -> None:
    """Check that the page has a stylesheet for each of its classes that any has rules for."""
    classes, addresses = page.evaluate("""() => [
        [...document.querySelectorAll("[class]")].flatMap((one) => [...one.classList]),
        [...document.styleSheets].map((one) => new URL(one.href).pathname),
    ]""")
    by_sheet = _classes_by_sheet()
    styled = set().union(*(by_sheet[address.split("perch.")[1]] for address in addresses))
    missing = set(classes) & set().union(*by_sheet.values()) - styled
    assert not missing, (page.url, missing)


def expect_still(page: Page) -> None:
    """Check that nothing moves if the reader has asked for reduced motion."""
    found = page.evaluate("document.getAnimations().map((one) => one.animationName ?? one.id)")
    assert not found, (page.url, found)


# The controls that can have the focus: those of the open dialog, else of the page. `contrast`
# computes the contrast of two colours, such as rgb(1, 2, 3), as WCAG defines it.
CONTROLS = """
    const CONTROLS = "a[href], button, summary, input:not([type=hidden]), select, textarea";
    const modal = document.querySelector("dialog[open]");
    const controls = [...(modal ?? document).querySelectorAll(CONTROLS)].filter((one) =>
        one.checkVisibility() && !one.disabled && one.tabIndex >= 0 && !one.closest("[inert]"));
    const light = (colour) => {
        const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => {
            const share = part / 255;
            return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const contrast = (one, other) => {
        const [a, b] = [light(one), light(other)];
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    };
    const behind = (element) => {
        for (let at = element.parentElement; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            if (!/, 0\\)$/.test(colour)) return colour;
        }
        return getComputedStyle(document.documentElement).backgroundColor;
    };
    const said = (one) => one.outerHTML.slice(0, 150);
"""
WITHOUT_RING = f"""() => {{
    {CONTROLS}
    const before = document.activeElement;
    const found = controls.filter((one) => {{
        one.focus({{ preventScroll: true, focusVisible: true }});
        const style = getComputedStyle(one);
        const isDrawn = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
        return !isDrawn || contrast(style.outlineColor, behind(one)) < 3;
    }});
    before?.focus({{ preventScroll: true }});
    return found.map(said);
}}"""
# Forced colours remove backgrounds: a button must be recognizable by its border.
WITHOUT_SHAPE = f"""() => {{
    {CONTROLS}
    return controls.filter((one) => {{
        const style = getComputedStyle(one);
        if (one.matches("[type=checkbox], [type=radio]")) return style.appearance !== "auto";
        const isBox = one.matches("button:not(.bare, .link), [role=button], input, select");
        return isBox && !one.closest("details.menu ul") && parseFloat(style.borderTopWidth) < 1;
    }}).map(said);
}}"""


def expect_rings(page: Page) -> None:
    """Check that each control with the focus has a visible ring: light, dark, in forced colours."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = page.evaluate(WITHOUT_RING)
        assert not found, (page.url, scheme, found)
    page.emulate_media(forced_colors="active")
    found = page.evaluate(WITHOUT_RING) + page.evaluate(WITHOUT_SHAPE)
    page.emulate_media(forced_colors="none")
    assert not found, (page.url, "forced colours", found)


TAB = {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
# The elements that have had the focus since. Every visible control must be among them.
FOLLOW = f"""() => {{
    {CONTROLS}
    window.followed = new Set();
    document.addEventListener("focusin", (event) => followed.add(event.target));
    if (!modal) document.activeElement?.blur();
    getSelection().removeAllRanges();
    return controls.length;
}}"""
NOT_FOLLOWED = f"""() => {{
    {CONTROLS}
    return controls.filter((one) => !followed.has(one) && one !== document.activeElement).map(said);
}}"""


def expect_reachable(page: Page) -> None:
    """Check that Tab moves the focus to every visible control, and out of each again."""
    turns = page.evaluate(FOLLOW)
    missed: list[str] = []
    session = page.context.new_cdp_session(page)
    # A part that scrolls takes a press of Tab too, and a date field one for each of its parts.
    for more in (turns + 3, 10, 20, 40):
        for _ in range(more):
            # The focus moves when the key goes down.
            session.send("Input.dispatchKeyEvent", {"type": "rawKeyDown", **TAB})
        if not (missed := page.evaluate(NOT_FOLLOWED)):
            break
    session.send("Input.dispatchKeyEvent", {"type": "keyUp", **TAB})
    session.detach()
    assert not missed, (page.url, missed)


# A screen reader's user hears only the names: they must be distinct, and each row needs a header.
UNCLEAR = f"""() => {{
    {CONTROLS}
    const name = (one) =>
        one.getAttribute("aria-label") ?? one.textContent.trim().replace(/\\s+/g, " ");
    const buttons = controls.filter((one) => one.matches("button, [role=button], summary"));
    // Buttons that copy the same may say so.
    const copy = (one) => one.dataset.copy ?? Symbol();
    const twice = buttons.filter((one, index) => buttons.some((other, place) =>
        place < index && name(other) === name(one) && copy(other) !== copy(one)));
    const rows = [...document.querySelectorAll("table.rows tbody tr")].filter((row) =>
        row.checkVisibility() && !row.querySelector("th[scope=row]"));
    const heads = [...document.querySelectorAll("thead th:not([scope])")];
    return [...twice, ...rows, ...heads].map(said);
}}"""


def expect_clear(page: Page) -> None:
    """Check that no two buttons have the same name, and that rows and columns have headers."""
    found = page.evaluate(UNCLEAR)
    assert not found, (page.url, found)


def expect_good(page: Page, widths: Mapping[str, Sequence[int]]) -> None:
    """Check the page at these widths, by text size, in both schemes, with everything unfolded. All
    complaints are reported together."""
    wrong: list[str] = []

    def look(expect: Callable[[Page], None]) -> None:
        try:
            expect(page)
        except AssertionError as complaint:
            wrong.append(str(complaint))

    page.evaluate(
        "document.querySelectorAll('main details, dialog details').forEach((one) => "
        "{ one.open = !one.matches('.menu'); })"
    )
    for scheme, width in zip(SCHEMES, (1280, 390), strict=True):
        # With reduced motion there is no transition, whose colours would belong to neither scheme.
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.set_viewport_size({"width": width, "height": 900})
        look(expect_accessible)
    look(expect_still)
    look(expect_styled)
    for size, at in widths.items():
        page.evaluate("size => { document.documentElement.style.fontSize = size }", size)
        look(lambda page, at=at: expect_fits(page, at))  # type: ignore[misc]
    for expect_more in (expect_clear, expect_rings, expect_reachable):
        look(expect_more)
    assert not wrong, "\n".join(wrong)


def focused(page: Page) -> str:
    """Return the id of the element with the focus, or its name or words if it has no id; "" if no
    element has the focus."""
    return page.evaluate(  # type: ignore[no-any-return]
        """() => {
            const one = document.activeElement;
            if (!one || one === document.body) return "";
            return one.id || one.getAttribute("aria-label") || one.textContent.trim();
        }"""
    )


def tab_to(page: Page, name: str, *, most: int = 200) -> None:
    """Press Tab until `focused` returns this name."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if focused(page) == name:
            return
    raise AssertionError(f"{name} cannot be reached by Tab")


@dataclass
class Wire:
    """The answers that came over the wire while it listened, each with its size in bytes."""

    # (path of the address, status, bytes of the answer with its headers)
    answers: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(size for _, _, size in self.answers)

    def to(self, words: str) -> list[tuple[str, int, int]]:
        return [answer for answer in self.answers if words in answer[0]]


@contextmanager
def wire(page: Page) -> Iterator[Wire]:
    """Record the bytes of the page's answers."""
    heard = Wire()
    session = page.context.new_cdp_session(page)
    begun: dict[str, tuple[str, int]] = {}

    def on_response(event: dict[str, Any]) -> None:
        answer = event["response"]
        if answer["url"].startswith("http") and not answer.get("fromDiskCache"):
            path = "/" + answer["url"].split("/", 3)[3]
            begun[event["requestId"]] = (path, answer["status"])

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
    """Cut the page off from the network."""
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
