"""The processes of a running service, for the tests that kill and count them."""

import contextlib
from collections.abc import Iterator

import psutil

from tests.connections.place import Place
from tests.stack import Stack


def of_service(stack: Stack, program: str) -> list[psutil.Process]:
    """The running processes of `manage.py <program>`."""
    found = []
    for process in psutil.Process(stack.process.pid).children(recursive=True):
        try:
            if "manage.py" in " ".join(process.cmdline()) and program in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def proxy_processes(stack: Stack) -> list[psutil.Process]:
    """Those that serve clients; their parent does not."""
    parent, *children = of_service(stack, "proxy")
    assert {child.ppid() for child in children} <= {parent.pid}
    return children


def clients_of(process: psutil.Process, stack: Stack) -> set[int]:
    """The client ports of the connections that a proxy process has accepted."""
    return {
        connection.raddr.port
        for connection in process.net_connections("tcp")
        if connection.raddr and connection.laddr.port == stack.proxy_port
    }


def metadata_postmaster(stack: Stack) -> psutil.Process:
    pid_file = stack.state_dir / "metadata" / "postmaster.pid"
    return psutil.Process(int(pid_file.read_text().split()[0]))


@contextlib.contextmanager
def hung_metadata(stack: Stack) -> Iterator[None]:
    """The metadata database stands still: connections stay open, and nothing is answered."""
    postmaster = metadata_postmaster(stack)
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
    """Open in all of the proxy's processes."""
    return sum(process.num_fds() for process in of_service(stack, "proxy"))


def backends(place: Place) -> int:
    """Of clients, on the running compute, whatever they do."""
    with place.stack.compute(place.endpoint_id, "postgres") as platform:
        row = platform.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND usename <> 'perch_platform'"
        ).fetchone()
        return int(row[0]) if row else 0
