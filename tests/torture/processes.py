"""The processes that work for a state directory, whatever their parent is."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from tests.support.processes import SIGNS, is_alive


def each() -> Iterator[tuple[psutil.Process, list[str]]]:
    """Yield every process of the host with its command line."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = process.cmdline()
            if command and is_alive(process):
                yield process, command


def parts(state_dir: Path) -> dict[str, list[psutil.Process]]:
    """Return the service's own processes by part, parents first, including orphans."""
    found: dict[str, list[psutil.Process]] = {part: [] for part in SIGNS}
    for process, command in each():
        line = " ".join(command) + " "
        for part, sign in SIGNS.items():
            with suppress(psutil.Error):
                if sign in line and process.environ().get("PERCH_UP") == str(state_dir):
                    found[part].append(process)
    return {part: sorted(some, key=lambda one: one.pid) for part, some in found.items()}


def postmasters(state_dir: Path) -> dict[str, list[psutil.Process]]:
    """Return the Postgres processes that serve a branch's data, by branch."""
    found: dict[str, list[psutil.Process]] = {}
    for process, command in each():
        data = _data_of(command, state_dir)
        if data is None or "-C" in command:
            continue
        with suppress(psutil.Error):
            # A backend that was just forked still has its postmaster's name.
            parent = process.parent()
            if parent is None or _data_of(parent.cmdline(), state_dir) != data:
                found.setdefault(data.parent.name, []).append(process)
    return found


def poolers(state_dir: Path) -> list[psutil.Process]:
    sign = f"{state_dir}/branches/"
    return [
        process
        for process, command in each()
        if any(word.startswith(sign) and word.endswith("pgbouncer.ini") for word in command)
    ]


def at_work_in(directory: Path) -> dict[int, str]:
    """Return the processes whose working directory is below `directory`, by process id."""
    found = {}
    for process, command in each():
        with suppress(psutil.Error, OSError):
            if Path(process.cwd()).is_relative_to(directory):
                found[process.pid] = " ".join(command)[:200]
    return found


def of(state_dir: Path) -> dict[int, str]:
    """Return every process that works in the state directory, has it in its arguments, or is marked
    by it."""
    found = at_work_in(state_dir)
    for process, command in each():
        with suppress(psutil.Error, OSError):
            marked = process.environ().get("PERCH_STATE_DIR") == str(state_dir)
            if marked or any(str(state_dir) in word for word in command):
                found[process.pid] = " ".join(command)[:200]
    found.pop(os.getpid(), None)
    return found


def _data_of(command: list[str], state_dir: Path) -> Path | None:
    """Return the branch's data directory on which a Postgres was started."""
    if len(command) > 2 and command[1] == "-D" and command[2].startswith(f"{state_dir}/branches/"):
        return Path(command[2])
    return None
