"""Another major version of Postgres than the one that comes with Perch."""

from pathlib import Path

import pytest

DEBIANS = Path("/usr/lib/postgresql/15/bin")


def debians_postgres() -> Path:
    """Return the directory of Debian's Postgres 15; skip the test on a host without it."""
    if not DEBIANS.is_dir():
        pytest.skip("Debian's postgresql-15 is not installed")
    return DEBIANS
