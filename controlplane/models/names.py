"""Readable identifiers (`ep-quiet-heron-123456`, `brown-condor-12345678`), and the names of roles
and databases that are reserved for Postgres or the platform."""

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


# The API creates no role or database with a reserved name. The platform ignores those that SQL
# creates, and no client can log in with them.
_ROLES = ("pg_", "perch_")
# PgBouncer's own console is a database with this name, and a role with this name could log in to
# it.
POOLERS_OWN = "pgbouncer"
_DATABASES = ("postgres", "template0", "template1", POOLERS_OWN)


def is_reserved_role(name: str) -> bool:
    return name.startswith(_ROLES) or name in ("public", "none", POOLERS_OWN)


def is_reserved_database(name: str) -> bool:
    return name in _DATABASES
