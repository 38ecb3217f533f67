"""No process uses data of another version of Perch or of Postgres, and this one continues with a
released version's."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from controlplane.database.version import (
    RUNS_BESIDE,
    OtherVersion,
    is_too_old,
    record_compatibility,
    refuse_other_version,
    refuse_unknown,
    unknown_migrations,
)
from tests.selection import first_of
from tests.support.client import Client
from tests.support.expand_only import end_of_previous_release
from tests.support.ordinary_user import (
    as_ordinary_user,
    give_to_ordinary_user,
    own_checkout,
    own_python,
)
from tests.support.processes import postmaster_in
from tests.support.project import Project
from tests.support.released_state import FIXTURES, check, unpack
from tests.support.stack import ROOT, Stack, free_port, running_stack
from tests.support.waiting import wait_for

PROCESSES = {
    "up": [sys.executable, "manage.py", "up"],
    "worker": [sys.executable, "manage.py", "worker"],
    "proxy": [sys.executable, "manage.py", "proxy"],
    "api": [sys.executable, "-m", "gunicorn", "controlplane.wsgi", "--no-control-socket"],
}


# Migrates, and ends at once when the migration of that name is noted.
KILLED = """
import os
import django
from django.core.management import call_command
from django.db.migrations.recorder import MigrationRecorder
os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
django.setup()
record = MigrationRecorder.record_applied
def killed(self, app, name):
    if name == "%s":
        os._exit(9)
    record(self, app, name)
MigrationRecorder.record_applied = killed
call_command("migrate", verbosity=0)
"""


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


@pytest.mark.thorough
def test_a_migration_gives_way_to_requests(elsewhere: str, state_dir: Path) -> None:
    """Requests lock the same tables in another order."""
    before = [sys.executable, "manage.py", "migrate", "--settings", "controlplane.settings"]
    known = {name: value for name, value in os.environ.items() if "DJANGO" not in name}
    environment = {**known, "PERCH_STATE_DIR": str(state_dir), "DATABASE_URL": elsewhere}
    run = partial(subprocess.run, cwd=ROOT, env=environment, check=True, timeout=120)
    run([*before, *end_of_previous_release()])
    with ThreadPoolExecutor(1) as threads, psycopg.connect(elsewhere) as request:
        request.execute("SELECT FROM controlplane_host")
        migrating = threads.submit(run, before)
        waits = (
            "SELECT FROM pg_locks WHERE NOT granted AND relation = 'controlplane_host'::regclass"
        )
        wait_for(lambda: request.execute(waits).rowcount, "the migration to wait for the request")
        # The migration has locked this table before.
        request.execute("SELECT FROM controlplane_operation")
        assert not migrating.done()
        request.commit()
        migrating.result()


@pytest.mark.thorough
def test_a_migration_that_is_killed_while_it_is_noted_can_be_done_again(
    elsewhere: str, state_dir: Path
) -> None:
    known = {name: value for name, value in os.environ.items() if "DJANGO" not in name}
    environment = {**known, "PERCH_STATE_DIR": str(state_dir), "DATABASE_URL": elsewhere}
    run = partial(subprocess.run, cwd=ROOT, env=environment, timeout=120)
    for name in ("0005_operation_request_id", "0033_time_travel", "0061_restores_and_slugs"):
        assert run([sys.executable, "-c", KILLED % name]).returncode == 9, name
    migrate = [sys.executable, "manage.py", "migrate", "--settings", "controlplane.settings"]
    assert run(migrate).returncode == 0


@pytest.mark.parametrize(
    ("beside", "is_refused"), [(RUNS_BESIDE, False), ("9998_later", True), (None, True)]
)
def test_a_database_of_a_newer_version_that_runs_beside_this_one(
    db: None, monkeypatch: pytest.MonkeyPatch, beside: str | None, is_refused: bool
) -> None:
    """During a rolling upgrade. `migrate` notes beside which older versions the new one runs."""
    record_compatibility()
    with connection.cursor() as cursor:
        if beside != RUNS_BESIDE:
            words = "NULL" if beside is None else f"'runs beside {beside}'"
            cursor.execute(f"COMMENT ON TABLE django_migrations IS {words}")
        cursor.execute(
            "INSERT INTO django_migrations VALUES (-1, 'controlplane', '9999_future', now())"
        )
        # Migrating with this version must not change what the newer one has noted.
        record_compatibility()
    within_the_test(monkeypatch)
    if is_refused:
        for accepts in (refuse_unknown, lambda: refuse_other_version(beside=True)):
            with pytest.raises(OtherVersion, match="migrated by a newer Perch"):
                accepts()
    else:
        refuse_unknown()
        refuse_other_version(beside=True)
    # A backup holds rows that only the newer version can read.
    with pytest.raises(OtherVersion, match="migrated by a newer Perch"):
        refuse_other_version()


def test_a_database_of_a_release_before_0_2_is_refused(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'controlplane'")
        cursor.execute(
            "INSERT INTO django_migrations VALUES (-1, 'controlplane', '0001_initial', now())"
        )
    within_the_test(monkeypatch)
    with pytest.raises(OtherVersion, match=r"older than 0\.2\.0: upgrade that to 0\.2\.0 first"):
        refuse_unknown()
    assert is_too_old({"controlplane.0001_initial"})
    assert not is_too_old(set())
    assert not is_too_old({"controlplane.0001_squashed_0029"})


def test_a_database_between_releases_is_refused_and_one_of_a_release_is_not() -> None:
    """Of what one migration replaces, no release has only a part."""
    loader = MigrationLoader(None)
    (newest,) = loader.graph.leaf_nodes("controlplane")
    former: set[str] = set()
    for key in loader.graph.forwards_plan(newest):
        replaces = [".".join(one) for one in loader.disk_migrations[key].replaces]
        assert not is_too_old(former)
        for count in range(1, len(replaces)):
            assert is_too_old({*former, *replaces[:count]})
        former.update(replaces or [".".join(key)])
    assert not is_too_old(former)
    assert unknown_migrations(former) == []


def within_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the checks, which connect for themselves, see the test's transaction."""

    @contextmanager
    def the_same(*_: object, **__: object) -> Iterator[object]:
        yield connection.connection

    monkeypatch.setattr("controlplane.database.version.psycopg.connect", the_same)


def test_migrating_notes_the_versions_that_may_run_beside(db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT obj_description('django_migrations'::regclass, 'pg_class')")
        assert cursor.fetchone() == (f"runs beside {RUNS_BESIDE}",)


def test_a_database_of_this_version_is_accepted(db: None) -> None:
    refuse_other_version()


def test_a_database_with_all_that_squashed_migrations_replace_is_accepted(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as nobody has migrated it since it had the single ones."""
    within_the_test(monkeypatch)
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE name LIKE '%squashed%'")
        assert cursor.rowcount
        refuse_other_version()
        cursor.execute("DELETE FROM django_migrations WHERE name = '0050_hosts_of_rows'")
    with pytest.raises(OtherVersion, match="between two releases"):
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


RELEASES = sorted(FIXTURES.glob("*.tar.xz"))


@pytest.mark.parametrize("archive", RELEASES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_an_ordinary_users_state_is_kept(state_dir: Path, archive: Path) -> None:
    """Rows, roles and poolers are still there, and new ones can be created."""
    place, state_dir = state_dir, state_dir / "state"
    state_dir.mkdir()
    contents = unpack(archive, state_dir)
    give_to_ordinary_user(place)
    python, checkout = own_python(place / "venv"), own_checkout(place / "checkout")
    account = as_ordinary_user()
    program = (python, "manage.py")
    home = {"HOME": str(place)}
    with running_stack(state_dir, program, cwd=checkout, account=account, **home) as stack:
        client = Client(stack.api_url, contents.key)
        check(client, stack.proxy_port, contents)
        # A branch of the release can use everything that was added later.
        branches = f"/projects/{contents.project_id}/branches"
        of_it = {"branch": {"parent_id": contents.branch_id}, "endpoints": [{"type": "read_write"}]}
        for made in (
            client.post(f"{branches}/{contents.branch_id}/snapshot"),
            client.post(branches, of_it),
            client.new_project(),
        ):
            assert {one["status"] for one in client.finish(made)} == {"finished"}
        postmaster = postmaster_in(stack.data_dir(contents.branch_id))
        assert postmaster.uids().real == account.get("user", os.geteuid())
