"""`manage.py install_pgbouncer` builds a PgBouncer that keeps prepared statements."""

import shutil
import subprocess
import sys

import psycopg
import pytest

from tests.support.place import Place
from tests.support.stack import ROOT, new_state_dir, running_stack

OFFLINE = ("Could not resolve", "Failed to fetch", "Could not connect")


@pytest.mark.thorough
def test_the_built_pooler_keeps_prepared_statements() -> None:
    if shutil.which("apt-get") is None:
        pytest.skip("the host has no apt")
    with new_state_dir() as state_dir:
        built = subprocess.run(
            [sys.executable, ROOT / "manage.py", "install_pgbouncer", "--state-dir", state_dir],
            capture_output=True,
            text=True,
            timeout=500,
        )
        if any(words in built.stderr for words in OFFLINE):
            pytest.skip("apt's mirror cannot be reached")
        assert built.returncode == 0, built.stderr
        assert f"{state_dir}/pgbouncer/pgbouncer is PgBouncer 1." in built.stdout
        with running_stack(state_dir) as stack:
            place = Place.create(stack, stack.client())
            assert "Pooling  without" not in (state_dir / "up.log").read_text()
            # Not by `Place.connect`, which goes by the host's own PgBouncer.
            with psycopg.connect(**place.parameters(pooled=True), autocommit=True) as session:
                for _ in range(3):
                    found = session.execute("SELECT %s::int", [7], prepare=True).fetchone()
                    assert found == (7,)
                (named,) = session.execute(
                    "SELECT count(*) FROM pg_prepared_statements"
                ).fetchone() or (0,)
                assert named >= 1
