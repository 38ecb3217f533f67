"""The secret key of a running service: each process refuses a wrong one, and it can be replaced."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from controlplane.database.secret_keys import ENCRYPTED
from controlplane.deployment.supervision import programs_of
from tests.selection import first_of
from tests.support.commands import ran
from tests.support.place import Place
from tests.support.project import Project
from tests.support.service import Service
from tests.support.stack import ROOT, Stack, free_port, new_directory
from tests.support.waiting import wait_for

OLD, NEW = "the old key", "the new key"


def refused(stack: Stack, command: str, state_dir: Path) -> str:
    """What a process of the Procfile says that gets a wrong key and the service's database."""
    failed = subprocess.run(
        ["/bin/sh", "-c", f"exec {command}"],
        cwd=ROOT,
        env={
            **{name: value for name, value in os.environ.items() if "DJANGO" not in name},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PERCH_STATE_DIR": str(state_dir),
            "DATABASE_URL": f"host={stack.state_dir}/sockets/metadata user=perch dbname=perch",
            "PERCH_SECRET_KEY": "a wrong key",
            "PERCH_PROXY_PORT": str(free_port()),
            "API_PORT": str(free_port()),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert failed.returncode, command
    return failed.stdout + failed.stderr


@pytest.mark.parametrize("name", first_of(["api", "worker", "proxy"]))
def test_a_process_with_a_wrong_key_does_not_start(stack: Stack, name: str) -> None:
    program = next(one for one in programs_of(ROOT / "Procfile") if one.name == name)
    with new_directory() as state_dir:
        assert "PERCH_SECRET_KEY is not the key" in refused(stack, program.command, state_dir)


@pytest.mark.thorough
def test_an_api_that_started_without_the_database_ends_once_that_has_another_key(
    stack: Stack, tmp_path: Path
) -> None:
    command = next(one.command for one in programs_of(ROOT / "Procfile") if one.name == "api")
    place, port = tmp_path / "metadata", free_port()
    process = subprocess.Popen(
        ["/bin/sh", "-c", f"exec {command}"],
        cwd=ROOT,
        env={
            **{name: value for name, value in os.environ.items() if "DJANGO" not in name},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "DATABASE_URL": f"host={place} user=perch dbname=perch",
            "PERCH_SECRET_KEY": "a wrong key",
            "API_PORT": str(port),
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = f"http://127.0.0.1:{port}/healthz"
        wait_for(lambda: _status_of(url) == 503, "an API without a database")
        place.symlink_to(stack.state_dir / "sockets" / "metadata")
        assert process.wait(60)
        assert process.stderr is not None
        assert "PERCH_SECRET_KEY is not the key" in process.stderr.read()
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def _status_of(url: str) -> int:
    try:
        return requests.get(url, timeout=10).status_code
    except requests.ConnectionError:
        return 0


def test_every_encrypted_column_is_known_to_the_rotation(stack: Stack, project: Project) -> None:
    project.client.call(
        "POST", "/api_keys", json={"key_name": "x"}, headers={"Idempotency-Key": "k"}
    )
    hook = {"url": "https://hooks.example/perch", "event_types": ["*"]}
    made = project.client.post("/webhooks", {"webhook": hook})["webhook"]
    project.client.post(f"/webhooks/{made['id']}/rotate_secret")
    found = set()
    with stack.database() as database:
        columns = database.execute(
            "SELECT table_name, column_name FROM information_schema.columns"
            " WHERE table_schema = 'public' AND data_type IN ('text', 'character varying')"
        ).fetchall()
        for table, column in columns:
            value = f"SELECT 1 FROM {table} WHERE {column} LIKE 'gAAAAA%' LIMIT 1"
            if database.execute(value.encode()).fetchone():
                found.add((table, column))
    known = {(one.table, one.column) for one in ENCRYPTED}
    assert found <= known
    assert ("controlplane_role", "encrypted_password") in found
    assert ("controlplane_webhook", "previous_secret") in found


@pytest.fixture
def service(state_dir: Path) -> Iterator[Service]:
    """A service with the old key, of which the copy of the history is encrypted with it too."""
    place, store = state_dir / "service", state_dir / "store"
    place.mkdir(mode=0o711)
    running = Service(place, PERCH_SECRET_KEY=OLD, PERCH_HISTORY_STORE=f"file://{store}")
    yield running
    running.down()


@pytest.mark.thorough
def test_the_key_of_a_service_is_replaced(service: Service, state_dir: Path) -> None:
    project = Place.create(service.stack, service.client)
    branch = f"/projects/{project.id}/branches/{project.branch_id}"
    reveal = f"{branch}/roles/{project.role}/reveal_password"
    password = service.client.get(reveal)["password"]
    store, history = state_dir / "store", project.branch_path(rest="/history")
    wait_for(lambda: service.client.get(history)["history"].get("copied_at"), "a copy", timeout=60)
    service.down()
    settings = service._environment
    settings |= {"PERCH_SECRET_KEY": NEW, "PERCH_SECRET_KEY_FALLBACKS": OLD}
    service.up()
    assert service.client.get(reveal)["password"] == password
    said = ran("rotate_secret_key", "--state-dir", service.state_dir, **settings)
    assert "Everything is encrypted" in said
    wait_for(lambda: list(store.glob("keys/**/*")), "the kept key")
    service.down()
    del settings["PERCH_SECRET_KEY_FALLBACKS"]
    service.up()
    assert service.client.get(reveal)["password"] == password
    service.project()

    # The new key alone restores what was copied with the old one.
    rows = set(store.glob("**/metadata/*"))
    wait_for(lambda: set(store.glob("**/metadata/*")) - rows, "another copy of the rows")
    service.down()
    service.state_dir.rename(state_dir / "lost")
    ran("restore", "--from-store", "--state-dir", service.state_dir, **settings)
    service.up()
    assert service.client.get(reveal)["password"] == password
    assert project.branch()["current_state"] == "ready"
