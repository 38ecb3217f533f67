"""Reads the console's answers as a user would: words, rows and fields, without the markup."""

import re
from html.parser import HTMLParser
from typing import Any

from console.pages.live_regions import MARKLESS_POLL_INTERVAL_MS, POLL_INTERVAL_MS


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.rows: list[list[str]] = []
        self.fields: dict[str, str] = {}
        self.options: dict[str, list[str]] = {}
        self._select = self._textarea = ""
        self._in_cell = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        if tag == "tr":
            self.rows.append([])
        if (tag == "td" or (tag == "th" and found.get("scope") == "row")) and self.rows:
            self.rows[-1].append("")
            self._in_cell = True
        if tag == "input" and found.get("type") not in ("checkbox", "radio"):
            self.fields[found.get("name", "")] = found.get("value", "")
        if tag == "input" and found.get("type") == "checkbox":
            self.fields[found["name"]] = "on" if "checked" in found else ""
        if tag == "select":
            self._select = found["name"]
            self.options[self._select] = []
        if tag == "option" and self._select:
            self.options[self._select].append(found["value"])
            if "selected" in found:
                self.fields[self._select] = found["value"]
        if tag == "textarea":
            self._textarea = found["name"]
            self.fields[self._textarea] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._in_cell = False
        if tag == "select":
            self._select = ""
        if tag == "textarea":
            # Django writes a line break before the value. Browsers ignore it.
            self.fields[self._textarea] = re.sub(r"\A\r?\n", "", self.fields[self._textarea])
            self._textarea = ""

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self._in_cell and self.rows:
            self.rows[-1][-1] += f" {data}"
        if self._textarea:
            self.fields[self._textarea] += data


class Page:
    """One answer of the console."""

    def __init__(self, answer: Any) -> None:
        self.html = answer.content.decode()
        reader = _Reader()
        reader.feed(self.html)
        self.text = _plain(" ".join(reader.words))
        self.fields = reader.fields
        self.options = reader.options
        self._rows = [[_plain(cell) for cell in row] for row in reader.rows if row]

    def row(self, words: str) -> str:
        """Return the text of the only table row with these words in it."""
        found = [" | ".join(row) for row in self._rows if words in " ".join(row)]
        assert len(found) == 1, f"{len(found)} rows with {words!r}: {self._rows}"
        return found[0]

    def rows(self) -> list[str]:
        return [" | ".join(row) for row in self._rows]

    @property
    def pause(self) -> int:
        """Milliseconds until the live region is polled; 0 if there is none."""
        found = re.search(r'<div id="live"[^>]* data-every="(\d+)"', self.html)
        return int(found[1]) if found else 0

    @property
    def mark(self) -> str:
        """The mark that the live region was made at; "" if it has none."""
        found = re.search(r'<div id="live"[^>]* data-mark="(\w+)"', self.html)
        return found[1] if found else ""

    @property
    def polls(self) -> bool:
        """True if the live region is read again although its mark may be the same."""
        return self.pause not in (0, POLL_INTERVAL_MS, MARKLESS_POLL_INTERVAL_MS)


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
