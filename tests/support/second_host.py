"""A second host in the region of a running service: a worker and a proxy with a state directory of
their own."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from psycopg import sql

from tests.support.processes import kill_with_children, postmaster_in
from tests.support.stack import ROOT, Stack, free_port
from tests.support.waiting import wait_for

NAME, ADDRESS = "second", "second.localhost"


@dataclass(frozen=True)
class SecondHost:
    # The service as this host's projects see it: its proxy and its state directory.
    stack: Stack
    worker: "subprocess.Popen[bytes]"
    proxy: "subprocess.Popen[bytes]"

    def kill_everything(self) -> None:
        """Send SIGKILL to every process of the host, including computes."""
        doomed = [psutil.Process(self.worker.pid), psutil.Process(self.proxy.pid)]
        for branch in self.stack.state_dir.joinpath("branches").glob("br-*"):
            with suppress(FileNotFoundError, IndexError, psutil.NoSuchProcess):
                doomed.append(postmaster_in(branch / "data"))
        kill_with_children(doomed)


def variables(stack: Stack, state_dir: Path, name: str = NAME) -> dict[str, str]:
    """The environment of a host of the service's region with this state directory."""
    url = f"host={stack.state_dir}/sockets/metadata user=perch dbname=perch"
    known = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO_")}
    return known | {
        "DATABASE_URL": stack.database_url or url,
        "PERCH_STATE_DIR": str(state_dir),
        "PERCH_SECRET_KEY_FILE": str(stack.state_dir / "secret-key"),
        "PERCH_HOST_NAME": name,
        "PERCH_HOST_ADDRESS": f"{name}.localhost",
        "PERCH_REGION_PORT": str(stack.proxy_port),
        "PERCH_PROXY_PROCESSES": "1",
        "PERCH_PROXY_HANDOVER_TIMEOUT": "0",
    }


@contextmanager
def running(
    command: str, environment: Mapping[str, str], log: Path
) -> "Iterator[subprocess.Popen[bytes]]":
    """Run `manage.py COMMAND` in the block, and end it as an operator does."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "manage.py", command],
            cwd=ROOT,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(60)


@contextmanager
def second_host(
    stack: Stack, state_dir: Path, name: str = NAME, **changes: str
) -> Iterator[SecondHost]:
    """Run a second host beside the service until the end of the block, with an empty directory
    `state_dir` and the changed variables. At its end no project may be left on it; its row is
    removed."""
    state_dir.mkdir(mode=0o711, exist_ok=True)
    # Making a template takes seconds.
    shutil.copytree(stack.state_dir / "templates", state_dir / "templates", symlinks=True)
    port = free_port()
    environment = variables(stack, state_dir, name) | {"PERCH_PROXY_PORT": str(port), **changes}
    with stack.database() as database:
        try:
            with (
                running("worker", environment, state_dir / "worker.log") as worker,
                running("proxy", environment, state_dir / "proxy.log") as proxy,
            ):
                lives = "SELECT FROM controlplane_host WHERE id = %s AND version <> ''"
                lives += " AND worker_seen_at > now() - interval '5 s'"
                lives += " AND proxy_seen_at > now() - interval '5 s'"
                lives += " AND peer_certificate <> ''"
                wait_for(lambda: database.execute(lives, [name]).rowcount, "the second host")
                yield SecondHost(
                    replace(stack, state_dir=state_dir, proxy_port=port), worker, proxy
                )
        finally:
            # The rows of deleted projects.
            database.execute("UPDATE controlplane_project SET host_id = 'local'")
            database.execute("DELETE FROM controlplane_logreceiver WHERE host_id = %s", [name])
            database.execute("DELETE FROM controlplane_postgressettings WHERE host_id = %s", [name])
            database.execute("DELETE FROM controlplane_host WHERE id = %s", [name])


# Workers write every two seconds how much of their disks is free.
FULL = """
CREATE FUNCTION count_as_full() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN NEW.disk_free_bytes := 0; RETURN NEW; END $$;
CREATE TRIGGER count_as_full BEFORE UPDATE ON controlplane_host
FOR EACH ROW WHEN (NEW.id <> {host}) EXECUTE FUNCTION count_as_full();
UPDATE controlplane_host SET disk_free_bytes = 0 WHERE id <> {host};
"""
AS_BEFORE = "UPDATE controlplane_host SET disk_free_bytes = %s WHERE id = %s"


@contextmanager
def placing_on(stack: Stack, host: str) -> Iterator[None]:
    """Place new projects on this host in the block: the disks of all others count as full. If they
    were drained instead, their workers would move their projects."""
    with stack.database() as database:
        free = database.execute("SELECT disk_free_bytes, id FROM controlplane_host").fetchall()
        database.execute(sql.SQL(FULL).format(host=host))
        try:
            yield
        finally:
            database.execute("DROP FUNCTION count_as_full CASCADE")
            database.cursor().executemany(AS_BEFORE, free)


def hosts(stack: Stack, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `manage.py hosts` on the first host."""
    environment = variables(stack, stack.state_dir)
    return subprocess.run(
        [sys.executable, "manage.py", "hosts", *arguments],
        cwd=ROOT,
        env={**environment, "PERCH_HOST_NAME": "local", "PERCH_HOST_ADDRESS": "localhost"},
        capture_output=True,
        text=True,
        timeout=60,
    )
