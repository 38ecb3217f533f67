"""No process uses data of another version of Perch or of Postgres."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from controlplane.database.version import refuse_other_version
from tests.selection import first_of
from tests.support.project import Project
from tests.support.stack import ROOT, Stack, free_port

PROCESSES = {
    "up": [sys.executable, "manage.py", "up"],
    "worker": [sys.executable, "manage.py", "worker"],
    "proxy": [sys.executable, "manage.py", "proxy"],
    "api": [sys.executable, "-m", "gunicorn", "controlplane.wsgi", "--no-control-socket"],
}


@pytest.fixture
def elsewhere(stack: Stack) -> Iterator[str]:
    """The URL of an empty database."""
    with stack.database() as session:
        session.execute("CREATE DATABASE other_version")
    yield f"postgresql:///other_version?user=perch&host={stack.state_dir}/sockets/metadata"
    with stack.database() as session:
        session.execute("DROP DATABASE other_version WITH (FORCE)")


def refusal(name: str, state_dir: Path, url: str) -> str:
    """Return the output of the process, which exits at once."""
    environment = {
        **{name: value for name, value in os.environ.items() if "DJANGO" not in name},
        "PERCH_STATE_DIR": str(state_dir),
        "DATABASE_URL": url,
        "PERCH_PROXY_PORT": str(free_port()),
    }
    arguments = ["--bind", f"127.0.0.1:{free_port()}"] if name == "api" else []
    done = subprocess.run(
        [*PROCESSES[name], *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert done.returncode not in (0, None)
    assert "Traceback" not in done.stdout
    return done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("name", first_of(["worker", "proxy", "api"]))
def test_a_process_refuses_an_older_database(name: str, elsewhere: str, state_dir: Path) -> None:
    assert "run `manage.py migrate`" in refusal(name, state_dir, elsewhere)


@pytest.mark.thorough
@pytest.mark.parametrize("name", first_of(PROCESSES))
def test_a_process_refuses_a_newer_database(name: str, elsewhere: str, state_dir: Path) -> None:
    with psycopg.connect(elsewhere) as session:
        session.execute("CREATE TABLE django_migrations (app text, name text)")
        session.execute("INSERT INTO django_migrations VALUES ('controlplane', '9999_future')")
    said = refusal(name, state_dir, elsewhere)
    assert "the database was migrated by a newer Perch: it has controlplane.9999_future" in said
    assert "restore the backup" in said


def test_a_database_of_this_version_is_accepted(db: None) -> None:
    refuse_other_version()


@pytest.mark.thorough
def test_a_compute_does_not_start_on_data_of_another_postgres(project: Project) -> None:
    project.suspend()
    version = project.stack.data_dir(project.branch_id) / "PG_VERSION"
    ours = version.read_text()
    version.write_text("15\n")
    started = project.client.post(project.endpoint_path(rest="/start"))
    (failed,) = project.client.finish(started)
    assert failed["status"] == "failed"
    assert f"data is of Postgres 15, and this host has {ours.strip()}: " in failed["error"]
    assert failed["failures_count"] == 0
    assert str(project.stack.state_dir) not in failed["error"]
    version.write_text(ours)
    project.start()
