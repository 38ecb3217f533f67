"""Reads a unified diff into the lines that a page shows."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

# The most lines shown. Of a longer diff only the beginning is shown.
MOST_LINES = 2000
HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")


@dataclass(frozen=True)
class Line:
    # "added", "removed", "same", or "hunk" where equal lines were left out.
    kind: str
    text: str
    # Its line number in the base's schema and in the branch's; None if it is not in that one.
    base_number: int | None = None
    own_number: int | None = None

    @property
    def sign(self) -> str:
        return {"added": "+", "removed": "\N{MINUS SIGN}"}.get(self.kind, "")


@dataclass(frozen=True)
class Difference:
    lines: Sequence[Line]
    added: int
    removed: int
    left_out: int


def read_diff(diff: str) -> Difference:
    """Read a diff. Text that is no diff has no lines."""
    lines: list[Line] = []
    base = own = 0
    is_in_hunk = False
    for text in diff.splitlines():
        if hunk := HUNK.match(text):
            base, own = int(hunk[1]), int(hunk[2])
            is_in_hunk = True
            lines.append(Line("hunk", text[hunk.end() :].strip()))
        elif not is_in_hunk:
            continue
        elif text.startswith("+"):
            lines.append(Line("added", text[1:], own_number=own))
            own += 1
        elif text.startswith("-"):
            lines.append(Line("removed", text[1:], base_number=base))
            base += 1
        elif not text.startswith("\\"):
            lines.append(Line("same", text[1:], base, own))
            base, own = base + 1, own + 1
    return Difference(
        lines=lines[:MOST_LINES],
        added=sum(line.kind == "added" for line in lines),
        removed=sum(line.kind == "removed" for line in lines),
        left_out=max(0, len(lines) - MOST_LINES),
    )
