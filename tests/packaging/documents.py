"""The documents: their links, their blocks of commands, and the marks before these.

A mark is an HTML comment on the line before a block, which readers do not see: `<!-- not run:
REASON -->`, `<!-- run by TEST -->`, `<!-- runs until stopped -->`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.stack import ROOT

DOCS = ROOT / "docs"
# Documents of the top directory that are not on the site.
TOP = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
COMMANDS = ("sh", "bash", "console", "sql")
# Languages of blocks that are not typed into a shell; "" is for drawings and lines of logs.
OTHER_LANGUAGES = ("", "http", "js", "json", "python", "yaml")
BLOCK = re.compile(
    r"(?:^ *<!-- (?P<mark>[^\n]*) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    document: Path
    line: int  # the number of its first line, from 1
    language: str
    text: str
    # The text of the comment before it, or "".
    mark: str

    @property
    def name(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"

    @property
    def run_by(self) -> str:
        """The test that runs it separately from its page, or ""."""
        return self.mark.removeprefix("run by ") if self.mark.startswith("run by ") else ""

    @property
    def is_left_out(self) -> bool:
        """True if it is not run with its page."""
        return self.mark.startswith(("not run: ", "run by "))

    @property
    def is_endless(self) -> bool:
        return self.mark == "runs until stopped"


def documents() -> list[Path]:
    """Return the documents whose commands are run."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def blocks_of(document: Path) -> Iterator[Block]:
    text = document.read_text()
    for found in BLOCK.finditer(text):
        indent = len(found["indent"])
        lines = [line[indent:] for line in found["text"].splitlines()]
        line = text.count("\n", 0, found.start("text")) + 1
        yield Block(document, line, found["language"], "\n".join(lines), found["mark"] or "")


def commands_of(document: Path) -> list[Block]:
    return [block for block in blocks_of(document) if block.language in COMMANDS]


def links_of(document: Path) -> list[str]:
    """Return the links to other files, without those in code."""
    return [link for link in LINK.findall(BLOCK.sub("", document.read_text())) if ":" not in link]


def anchors_of(document: Path) -> set[str]:
    """Return the anchors of the headings, as both the repository's host and the site make them."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}
