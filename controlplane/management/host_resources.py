"""What `up` needs of the host before it starts anything: open files, processes, and room on the
disk."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from django.conf import settings
from django.core.management.base import CommandError

from controlplane.compute.space import LAST, in_words, make_room, space_at

# Each client of the proxy takes two, each running compute two of the worker's, beside some
# hundreds of its own.
ENOUGH_FILES = 4096
# Without these supervisor does not start (`supervision`), and no proxy would have any for clients.
LEAST_FILES = 1024
HOW_TO_RAISE_FILES = (
    "Raise the limit (ulimit -Hn, LimitNOFILE= of a systemd unit, --ulimit nofile= of docker run) "
    "and start again"
)
# Of the service's own processes, with their threads, and those of its database: 180 or so at rest.
LEAST_PROCESSES = 300
# Our own, as a container sees it: in version 2 of the interface, and in version 1.
CONTROL_GROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/pids"))


def raise_file_limit() -> str | None:
    """Let this process and its children open as many files as the host allows; what to say
    where those are few, else None. Raises CommandError where the service could not run."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < LEAST_FILES:
        raise CommandError(
            f"this host lets a process open {hard} files only, and Perch needs at least "
            f"{LEAST_FILES}, better {ENOUGH_FILES}. {HOW_TO_RAISE_FILES}"
        )
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY or hard >= ENOUGH_FILES:
        return None
    return (
        f"This host lets a process open {hard} files only: about {max(0, hard - 300) // 2} "
        f"clients and computes at once, and others are refused. Allow {ENOUGH_FILES} or more. "
        f"{HOW_TO_RAISE_FILES}"
    )


def refuse_few_processes() -> None:
    """Raises CommandError where the host does not let us start as many processes as the service
    has by itself."""
    for allowed, running, how in (*_of_account(), *_of_control_group()):
        if allowed - running < LEAST_PROCESSES:
            raise CommandError(
                f"this host lets Perch have {allowed} processes and threads, of which {running} "
                f"run already; it needs at least {LEAST_PROCESSES} more, and some for each "
                f"compute. Allow more ({how}) and start again"
            )


def _of_account() -> Iterator[tuple[int, int, str]]:
    """What RLIMIT_NPROC leaves to an ordinary user; the kernel does not hold root to it."""
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
    """See that there is room to begin with, giving back the ballast where there is not; what
    fails inside because the disk has filled up ends with these words. Raises CommandError,
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
    if space.free < LAST:
        raise CommandError(
            f"the disk of the state directory {settings.STATE_DIR} is full: "
            f"{in_words(space.free)} free of {in_words(space.total)}. Nothing is lost. "
            "Remove something from it and start again"
        ) from cause
