"""The processes of a running service, for tests that kill and count them."""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import psutil

from tests.support.stack import Stack
from tests.support.waiting import wait_for

# The part of the command line by which each process of the service is recognized.
SIGNS = {
    "api": "controlplane.wsgi",
    "console": "console.wsgi",
    "metadata": "/metadata ",
    "proxy": "manage.py proxy",
    "supervisor": "supervisord",
    "worker": "manage.py worker",
}


def processes_of(stack: Stack, part: str) -> list[psutil.Process]:
    """Return the processes of a part of the service, parents first."""
    found = []
    for process in psutil.Process(stack.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if SIGNS[part] in " ".join(process.cmdline()) + " ":
                found.append(process)
    return found


def opened_of_root(process: psutil.Process) -> dict[Path, bool]:
    """Return the files of root's that the process has open, and whether it can write to them."""
    found = {}
    for one in Path(f"/proc/{process.pid}/fd").iterdir():
        # Sockets and pipes without a name are of nobody.
        if (path := Path(os.readlink(one))).is_absolute() and one.stat().st_uid == 0:
            flags = Path(f"/proc/{process.pid}/fdinfo/{one.name}").read_text().split()[3]
            found[path] = int(flags, 8) & os.O_ACCMODE != os.O_RDONLY
    return found


def proxy_processes(stack: Stack) -> list[psutil.Process]:
    """Return the processes that serve clients, of the generation that accepts them."""
    main, *others = processes_of(stack, "proxy")
    # If it has an account of its own, the host process beside it has another one.
    others = [process for process in others if process.uids() == main.uids()]
    supervising = [process.pid for process in others if process.ppid() == main.pid]
    return [process for process in others if process.ppid() in supervising]


def clients_of(process: psutil.Process, stack: Stack) -> set[int]:
    """Return the client ports of the connections that a proxy process has accepted."""
    return {
        connection.raddr.port
        for connection in process.net_connections("tcp")
        if connection.raddr and connection.laddr.port == stack.proxy_port
    }


@contextmanager
def standing_still(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Stop the processes while the block lasts. Those that have ended meanwhile are left alone."""
    try:
        for process in processes:
            process.suspend()
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()


def held_still(stack: Stack, part: str) -> AbstractContextManager[None]:
    """Stop all processes of a part of the service while the block lasts."""
    return standing_still(processes_of(stack, part))


@contextmanager
def hung_metadata(stack: Stack) -> Iterator[None]:
    """Stop the metadata database while the block lasts: connections stay open and get no answer."""
    postmaster = postmaster_in(stack.state_dir / "metadata")
    postmaster.suspend()
    backends = postmaster.children()
    try:
        for backend in backends:
            backend.suspend()
        yield
    finally:
        for process in (*backends, postmaster):
            process.resume()


def descriptors(stack: Stack) -> int:
    """Return the number of open descriptors of all the proxy's processes."""
    return sum(process.num_fds() for process in processes_of(stack, "proxy"))


def postmaster_in(data_dir: Path) -> psutil.Process:
    """Return the Postgres that runs on the directory."""
    return psutil.Process(int((data_dir / "postmaster.pid").read_text().split()[0]))


def process_with(argument: Path) -> psutil.Process | None:
    """Return the running process that was started with the argument."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(argument) in process.cmdline() and is_alive(process):
                return process
    return None


def kill_with_children(doomed: Sequence[psutil.Process]) -> None:
    """Send SIGKILL to the processes and all that they have started."""
    all_ = [*doomed]
    for process in doomed:
        with suppress(psutil.NoSuchProcess):
            all_ += process.children(recursive=True)
    for process in all_:
        # So that no process restarts what was just killed.
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    for process in all_:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    wait_for(lambda: not any(map(is_alive, all_)), "the end of all processes")


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
