"""A Postgres that ends while a schema is copied is not reported as an error of the schema."""

from pathlib import Path
from typing import Any

import pytest

from controlplane.compute import schema_only
from controlplane.compute.accounts import own_account
from controlplane.compute.configuration import PLATFORM_ROLE
from controlplane.operations.words import words_of
from tests.support.bare_postgres import BarePostgres

END_SESSION = "SELECT pg_terminate_backend(pg_backend_pid())"


@pytest.mark.parametrize(
    ("statement", "raised"),
    [
        (END_SESSION, schema_only.CopyInterrupted),
        ("SELECT 1/0", schema_only.SchemaNotCopied),
    ],
)
def test_a_lost_session_is_distinguished_from_a_refused_statement(
    bare_cluster: BarePostgres,
    tmp_path: Path,
    settings: Any,
    statement: str,
    raised: type[Exception],
) -> None:
    (tmp_path / "branches").mkdir()
    settings.STATE_DIR = str(tmp_path)
    with bare_cluster.connect() as session:
        session.execute(f"DROP ROLE IF EXISTS {PLATFORM_ROLE}")
        session.execute(f"CREATE ROLE {PLATFORM_ROLE} SUPERUSER LOGIN")
    with pytest.raises(raised) as failure:
        schema_only._run(
            "psql",
            *("-v", "ON_ERROR_STOP=1", "-c", statement),
            sockets=bare_cluster.directory,
            database="postgres",
            account=own_account(),
        )
    assert ("try again" in words_of(failure.value)) == (raised is schema_only.CopyInterrupted)
