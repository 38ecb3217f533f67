"""CSV as Postgres's COPY writes and reads it: an empty field is NULL, and "" is an empty text."""

import re
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO

from console.turns import in_turns, let_others

Row = Sequence[str | None]

NEEDS_QUOTES = re.compile(r'[",\r\n]|\A[\s\ufeff]|\s\Z|\A\\\.\Z|\A\Z')
FIELD = re.compile(
    r'(?:"(?P<quoted>[^"]*+(?:""[^"]*+)*+)"|(?P<plain>[^",\r\n]*+))(?P<end>,|\r\n|\r|\n|\Z)'
)
# Of a row; a table has at most 1,600 columns.
MAX_FIELDS = 2_000


class UnreadableCsv(ValueError):
    """The text is not CSV. The message is for the user."""


def write_csv(rows: Iterable[Row]) -> str:
    text = StringIO(newline="")
    for row in in_turns(rows):
        text.write(",".join(map(_field, in_turns(row))) + "\r\n")
    return text.getvalue()


def _field(value: str | None) -> str:
    if value is None:
        return ""
    return '"' + value.replace('"', '""') + '"' if NEEDS_QUOTES.search(value) else value


def read_csv(text: str) -> Iterator[tuple[int, list[str | None]]]:
    """Yield the number of the line, from 1, and the fields of each row. A blank line is a row with
    one field, NULL; but not at the end, if rows have several fields. Raises UnreadableCsv, also for
    a row of more than MAX_FIELDS."""
    position, line, width = 0, 1, 0
    row: list[str | None] = []
    begins_at = line
    while position < len(text) or row:
        let_others()
        found = FIELD.match(text, position)
        if found is None:
            raise UnreadableCsv(f"Line {line}: a quote is not closed, or text follows it.")
        quoted = found["quoted"]
        row.append((found["plain"] or None) if quoted is None else quoted.replace('""', '"'))
        line += (quoted or "").count("\n")
        position = found.end()
        if found["end"] == ",":
            if len(row) >= MAX_FIELDS:
                raise UnreadableCsv(f"Line {line} has more than {MAX_FIELDS:,} fields.")
            continue
        width = width or len(row)
        if row != [None] or position < len(text) or width == 1:
            yield begins_at, row
        line += found["end"] != ""
        row, begins_at = [], line
