"""Debian's Postgres beside Perch's own, by the command of production.md, has what Perch's lacks."""

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.support.majors import debians_postgres
from tests.support.place import Place
from tests.support.stack import ROOT, Stack, new_state_dir, running_stack

# In the table of extensions.md: what Debian's has, and Perch's own lacks.
LACKING = {
    "pgcrypto": "CREATE EXTENSION pgcrypto; SELECT digest('perch', 'sha1')",
    "uuid-ossp": 'CREATE EXTENSION "uuid-ossp"; SELECT uuid_generate_v1()',
    "ICU": """SELECT 'Ä' < 'Z' COLLATE "de-x-icu" """,
    "a database of ICU": "CREATE DATABASE german TEMPLATE template0 LOCALE_PROVIDER icu"
    " ICU_LOCALE 'de-DE' LOCALE 'C.UTF-8'",
    "lz4": "CREATE TABLE packed (words text COMPRESSION lz4)",
    "xml": "SELECT xpath('/a', '<a/>')",
}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A service with the variable that the command sets, in place of the shared one."""
    debians_postgres()
    command = (ROOT / "docs" / "how-to" / "production.md").read_text()
    found = re.search(r"echo (PERCH_POSTGRES_BINS)=(\S+) >> /etc/perch/environment", command)
    assert found is not None
    variables: dict[str, Any] = {found[1]: found[2]}
    with new_state_dir() as state_dir, running_stack(state_dir, **variables) as one:
        yield one


@pytest.mark.thorough
def test_it_has_what_the_postgres_of_perch_lacks(stack: Stack) -> None:
    client = stack.client()
    debians, own = (Place.create(stack, client, pg_version=major) for major in (15, 18))
    for what, statement in LACKING.items():
        with own.connect() as session, pytest.raises(psycopg.Error):
            session.execute(statement.encode())
        with debians.connect() as session:
            for part in statement.split(";"):
                session.execute(part.encode())
            assert session.info.transaction_status == 0, what
