"""One compute that tests start in their own process, without the service. A test module imports the
fixtures `computes` and `branch`, and gets a branch of its own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from controlplane.compute import compute
from controlplane.compute.processes.occupants import processes_in
from controlplane.compute.processes.session import session, socket_dir
from controlplane.compute.settings.configuration import ComputeSpec
from tests.support.own_compute import own_branch, postmaster_of
from tests.support.waiting import wait_for

SPEC = ComputeSpec(
    endpoint_id="ep-quiet-heron-123456",
    branch_id="br-quiet-heron-123456",
    min_cu=0.25,
    max_cu=1,
    pg_settings={
        "fsync": "off",
        "max_wal_size": "8GB",
        "shared_buffers": "256MB",
        "bgwriter_lru_maxpages": "0",
    },
)


BRANCH, ENDPOINT = SPEC.branch_id, SPEC.endpoint_id


@pytest.fixture(scope="module")
def computes() -> Iterator[Path]:
    """The directory of a branch in a state directory of this process."""
    with own_branch(BRANCH) as directory:
        yield directory


@pytest.fixture
def branch(computes: Path) -> Iterator[Path]:
    """The same directory. No process works there before and after the test."""
    yield computes
    compute.stop(BRANCH)
    assert processes_in(computes) == []


def postmaster() -> psutil.Process:
    return postmaster_of(BRANCH)


def serves() -> bool:
    with session(socket_dir(ENDPOINT)) as connection:
        return connection.execute("SELECT 1").fetchone() == (1,)


@contextmanager
def busy_backend() -> Iterator[psutil.Process]:
    """A backend that is busy forever, and does not notice that its postmaster has died."""
    directory = str(socket_dir(ENDPOINT))
    connection = psycopg.connect(
        host=directory, user="perch_platform", dbname="postgres", autocommit=True
    )
    work = "DO $$ BEGIN LOOP PERFORM 1; END LOOP; END $$"

    def run() -> None:
        with suppress(psycopg.Error):
            connection.execute(work)

    thread = threading.Thread(target=run)
    backend = psutil.Process(connection.info.backend_pid)
    began = backend.cpu_times().user
    thread.start()
    try:
        # A backend that has not begun its query yet would notice the death of its postmaster.
        wait_for(lambda: backend.cpu_times().user > began + 0.05, "the backend to be busy")
        yield backend
    finally:
        thread.join(20)
        connection.close()
