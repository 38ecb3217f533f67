"""Drops from pico.min.css the selectors of what no page of the console has; see pico.scss."""

import pathlib
import re

# What no template has; a test looks for it there.
ELEMENTS = (
    *("b", "sub", "sup", "address", "blockquote", "h4", "h5", "h6", "hgroup", "tfoot", "samp"),
    *("hr", "img", "audio", "video", "iframe", "canvas", "template"),
)
ATTRIBUTES = (
    *("type=radio", "type=reset", "type=date", "type=month", "type=time", "type=week"),
    *("role=switch", "role=link", "dir=rtl", "aria-disabled=true", "aria-invalid=false"),
    *("multiple",),
)
# In a list within :is(), :not() or :where(), an alternative that matches nothing, or only what
# another of the list matches too.
ALTERNATIVES = "|".join(
    [
        *ELEMENTS,
        *(re.escape(f"[{one}]") for one in ATTRIBUTES),
        r"\[type=(?:submit|button)\]",
    ]
)
IN_LIST = re.compile(rf"(?<=[(,])(?:{ALTERNATIVES})(?=[,)])(?=[^(]*\))")
# Only links are the current page.
LINKS, CURRENT = ":where(a", "[aria-current]:not([aria-current=false])"
UNUSED = re.compile(
    rf"(?<![\w.\[:=-])(?:{'|'.join(ELEMENTS)})(?![\w-])"
    rf"|\[(?:{'|'.join(map(re.escape, ATTRIBUTES))})\]"
    r"|^body>footer|fieldset\[disabled\]|summary\[role|\.contrast|\.striped"
    r"|:(?:is|where)\(\)|:not\(\[role=button\]\)\)\.secondary|::-ms-|::-moz-list"
)


def trimmed(css: str) -> str:
    def used(rule: re.Match[str]) -> str:
        selectors = re.split(r",(?![^()]*(?:\([^()]*\)[^()]*)*\))", rule[1])
        kept = [one for one in map(shortened, selectors) if not UNUSED.search(one)]
        return ",".join(kept) + rule[2] if kept else ""

    licence, end, rules = css.partition("*/")
    return licence + end + re.sub(r"((?<=[{}])[^{}@]+)(\{[^{}]*\})", used, rules)


def shortened(selector: str) -> str:
    fewer = IN_LIST.sub("", selector)
    if not selector.startswith(LINKS):
        fewer = fewer.replace(CURRENT, "")
    fewer = re.sub(r"(?<=\(),+|,+(?=\))", "", fewer)
    return re.sub(r",,+", ",", fewer).replace(":not()", "")


if __name__ == "__main__":
    path = pathlib.Path(__file__).with_name("pico.min.css")
    path.write_text(trimmed(path.read_text()))
