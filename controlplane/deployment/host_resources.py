"""What `up` needs from the host before it starts anything: open files, processes, space on the
disk, and the state directory, if another `up` still runs on it."""

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from django.conf import settings
from django.core.management.base import CommandError

from controlplane.compute.data.state_directory import StateDirectoryUnusable, hold_state_directory
from controlplane.compute.host.space import CRITICAL_BYTES, make_room, size_text, space_at

# Each client of the proxy takes two files, and each running compute takes two of the worker's.
# Perch itself needs some hundreds.
RECOMMENDED_FILES = 4096
# With fewer, supervisor does not start (`supervision`), and the proxy would have none for clients.
MIN_FILES = 1024
HOW_TO_RAISE_FILES = (
    "Raise the limit (ulimit -Hn, LimitNOFILE= of a systemd unit, --ulimit nofile= of docker run) "
    "and start again"
)
# For the service's own processes, their threads and its database's: about 180 when idle.
MIN_PROCESSES = 300
# Our own control group, as a container sees it: in version 2 and version 1 of the interface.
CONTROL_GROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/pids"))


def raise_file_limit() -> str | None:
    """Let this process and its children open as many files as the host allows. Returns a warning if
    that is few, otherwise None. Raises CommandError if the service could not run."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < MIN_FILES:
        raise CommandError(
            f"this host lets a process open only {hard} files, but Perch needs at least "
            f"{MIN_FILES}, and better {RECOMMENDED_FILES}. {HOW_TO_RAISE_FILES}"
        )
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY or hard >= RECOMMENDED_FILES:
        return None
    return (
        f"This host lets a process open only {hard} files: about {max(0, hard - 300) // 2} "
        f"clients and computes at once, and others are refused. Allow {RECOMMENDED_FILES} or more. "
        f"{HOW_TO_RAISE_FILES}"
    )


def refuse_few_processes() -> None:
    """Raise CommandError if the host does not let us start as many processes as the service needs
    without any compute."""
    for allowed, running, how in (*_of_account(), *_of_control_group()):
        if allowed - running < MIN_PROCESSES:
            raise CommandError(
                f"this host lets Perch have {allowed} processes and threads, of which {running} "
                f"run already; it needs at least {MIN_PROCESSES} more, and some for each "
                f"compute. Allow more ({how}) and start again"
            )


def _of_account() -> Iterator[tuple[int, int, str]]:
    """What RLIMIT_NPROC allows an ordinary user; the kernel does not apply it to root."""
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if hard != resource.RLIM_INFINITY and os.geteuid() != 0:
        resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))
        running = 0
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.uids().real == os.geteuid():
                    running += process.num_threads()
        yield hard, running, "ulimit -Hu, LimitNPROC= of a systemd unit, --ulimit nproc= of docker"


def _of_control_group() -> Iterator[tuple[int, int, str]]:
    for group in CONTROL_GROUPS:
        with suppress(OSError, ValueError):  # "max" is no number
            allowed = int((group / "pids.max").read_text())
            running = int((group / "pids.current").read_text())
            yield allowed, running, "TasksMax= of a systemd unit, --pids-limit of docker run"


@contextmanager
def room_on_disk() -> Iterator[None]:
    """Check that there is space on the disk, after removing the ballast if there is not. If the
    block fails and the disk has become full, that is the error reported. Raises CommandError,
    OSError."""
    Path(settings.STATE_DIR).mkdir(parents=True, exist_ok=True)
    make_room()
    _refuse_full_disk()
    try:
        yield
    except CommandError:
        raise
    except Exception as error:
        _refuse_full_disk(error)
        raise


def _refuse_full_disk(cause: Exception | None = None) -> None:
    space = space_at(settings.STATE_DIR)
    if space.free < CRITICAL_BYTES:
        raise CommandError(
            f"the disk of the state directory {settings.STATE_DIR} is full: "
            f"{size_text(space.free)} free of {size_text(space.total)}. No data is lost. Free "
            "some of its space and start again"
        ) from cause


# Tells a running `up` to make room. It ends its processes, but no compute.
MAKE_ROOM = signal.SIGUSR2
# Seconds that the running `up` may take for that. Requests in flight take 30 at most.
_TIMEOUT = 90.0
_POLL_INTERVAL = 0.05


@contextmanager
def holding_state_directory(*, replace: bool, say: Callable[[str], object]) -> Iterator[None]:
    """Hold the state directory as `hold_state_directory` does. If another `up` holds it and
    `replace` is true, tell that one to make room first. Raises StateDirectoryUnusable."""
    if replace:
        _replace(say)
    with hold_state_directory():
        path = _pid_file()
        path.write_text(f"{os.getpid()}\n")
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _replace(say: Callable[[str], object]) -> None:
    if _is_free():
        return
    try:
        pid = int(_pid_file().read_text())
        os.kill(pid, MAKE_ROOM)
    except (OSError, ValueError) as error:
        raise StateDirectoryUnusable(
            f"the Perch that runs on {settings.STATE_DIR} cannot be replaced: stop it first"
        ) from error
    say(f"Replacing the Perch that runs (process {pid}) …")
    deadline = time.monotonic() + _TIMEOUT
    while not _is_free():
        if time.monotonic() > deadline:
            raise StateDirectoryUnusable(f"process {pid} did not make room within {_TIMEOUT:.0f} s")
        time.sleep(_POLL_INTERVAL)


def _is_free() -> bool:
    try:
        with hold_state_directory():
            return True
    except StateDirectoryUnusable:
        return False


def _pid_file() -> Path:
    return Path(settings.STATE_DIR) / "up.pid"
