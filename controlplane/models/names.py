"""Readable identifiers: `ep-quiet-heron-123456`, `brown-condor-12345678`."""

import secrets
from pathlib import Path

# Clients distinguish an id from a name by its format: exactly two words of the letters a to z, then
# digits. The file has the first words, a blank line, and the second ones.
FIRST, SECOND = (
    words.split() for words in Path(__file__).with_name("words.txt").read_text().split("\n\n")
)


def new_branch_id() -> str:
    return f"br-{_two_words()}-{_digits(6)}"


def new_endpoint_id() -> str:
    return f"ep-{_two_words()}-{_digits(6)}"


def new_project_id() -> str:
    return f"{_two_words()}-{_digits(8)}"


def new_snapshot_id() -> str:
    return f"snap-{_two_words()}-{_digits(6)}"


def new_webhook_id() -> str:
    return f"wh-{_two_words()}-{_digits(6)}"


def _two_words() -> str:
    return f"{secrets.choice(FIRST)}-{secrets.choice(SECOND)}"


def _digits(count: int) -> str:
    return str(secrets.randbelow(9 * 10 ** (count - 1)) + 10 ** (count - 1))
