"""A compute's log is kept, and cannot fill the disk."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from controlplane.compute.host.logs import MAX_LOG_BYTES, flush_log, follow_logs, open_log
from tests.controlplane.branch_directories import coming_and_going
from tests.support.processes import processes_of
from tests.support.project import Project
from tests.support.stack import Stack
from tests.support.waiting import wait_for

LOG_WITHOUT_END = "DO $$ BEGIN LOOP RAISE LOG '%', repeat('x', 1000); END LOOP; END $$"


def logged(project: Project) -> int:
    """Return the size in bytes of the kept log of the branch's compute."""
    place = project.stack.data_dir(project.branch_id).parent
    return sum(path.stat().st_size for path in place.glob("postgres.log*"))


def test_a_role_that_logs_endlessly_uses_little_disk_and_delays_nobody(project: Project) -> None:
    began = time.monotonic()
    before = logged(project)
    with project.compute() as connection:
        connection.execute("SET statement_timeout = '2s'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute(LOG_WITHOUT_END)
    # At most 64 KiB every 50 ms are kept; without a limit, this would be hundreds of megabytes.
    allowed = (time.monotonic() - began) / 0.05 * 65536
    assert 1 << 20 < logged(project) - before < allowed
    log_file = project.stack.data_dir(project.branch_id).parent / "postgres.log"

    def logs_again() -> bool:
        # Until the pipe is empty, this line is dropped as well.
        say(project, "after the flood")
        return "after the flood" in log_file.read_text()

    wait_for(logs_again, "a line to be logged")


@pytest.mark.thorough
def test_what_is_logged_without_a_worker_is_not_lost(stack: Stack, project: Project) -> None:
    log_file = stack.data_dir(project.branch_id).parent / "postgres.log"
    worker = processes_of(stack, "worker")[0]
    worker.suspend()
    try:
        say(project, "while nobody reads")
        assert "while nobody reads" not in log_file.read_text()
    finally:
        worker.kill()
    wait_for(lambda: "while nobody reads" in log_file.read_text(), "the line to be logged")


def say(project: Project, words: str) -> None:
    with project.compute() as connection:
        connection.execute(f"DO $$ BEGIN RAISE LOG '{words}'; END $$".encode())


def test_a_log_is_rotated_and_the_previous_one_removed(tmp_path: Path) -> None:
    log_file = tmp_path / "postgres.log"
    descriptor = open_log(log_file)
    lines = 3 * MAX_LOG_BYTES // 60_000
    for number in range(lines):
        assert os.write(descriptor, f"line {number} ".encode().ljust(60_000, b".")) == 60_000
        flush_log(log_file)
    os.close(descriptor)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir() if path.is_file()}
    assert set(sizes) == {"postgres.log", "postgres.log.1"}
    assert max(sizes.values()) <= MAX_LOG_BYTES
    assert f"line {lines - 1} ".encode() in log_file.read_bytes()


def test_pipes_of_ended_computes_are_closed(tmp_path: Path) -> None:
    descriptors = []
    for number in range(50):
        place = tmp_path / str(number)
        place.mkdir()
        descriptors.append(open_log(place / "postgres.log"))
    assert open_below(tmp_path) == 100
    for descriptor in descriptors:
        os.write(descriptor, b"last words")
        os.close(descriptor)
    wait_for(lambda: open_below(tmp_path) == 0, "the pipes to be closed")
    assert all((tmp_path / str(n) / "postgres.log").read_text() == "last words" for n in range(50))


def open_below(directory: Path) -> int:
    """Return how many descriptors of this process are open on files below the directory."""
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            links.append(descriptor.readlink())
    return sum(link.is_relative_to(directory) for link in links)


def test_a_branch_that_is_removed_meanwhile_does_not_stop_the_reading_of_others(
    tmp_path: Path, settings: Any
) -> None:
    settings.STATE_DIR = tmp_path
    branches = tmp_path / "branches"
    branches.mkdir()
    with coming_and_going(branches):
        for _ in range(300):
            follow_logs()
