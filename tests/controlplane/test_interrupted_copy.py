"""A Postgres that ends while a schema is copied is not reported as an error of the schema."""

from pathlib import Path
from typing import Any

import pytest

from controlplane.compute import schema_restoring
from controlplane.compute.configuration import PLATFORM_ROLE
from controlplane.compute.dump_archive import Entry
from controlplane.operations.words import words_of
from tests.support.bare_postgres import BarePostgres

END_SESSION = "SELECT pg_terminate_backend(pg_backend_pid())"


@pytest.mark.parametrize(
    ("statement", "raised"),
    [
        (END_SESSION, schema_restoring.CopyInterrupted),
        ("SELECT 1/0", schema_restoring.SchemaNotCopied),
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
    entry = Entry(b"TABLE", b"t", b"public", b"", statement.encode(), b"")
    with (
        pytest.raises(raised) as failure,
        schema_restoring._running(bare_cluster.directory, "postgres") as session,
    ):
        schema_restoring._create(session, [entry])
    assert ("try again" in words_of(failure.value)) == (raised is schema_restoring.CopyInterrupted)
