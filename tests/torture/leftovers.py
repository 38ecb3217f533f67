"""Files and processes on the host that belong to deleted resources."""

from collections.abc import Callable
from pathlib import Path

from controlplane.compute.host.filesystem import CATALOG, HISTORY, POOLER, STANDBY
from tests.support.stack import Stack
from tests.torture import processes

CGROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/memory")
# Locks that do not belong to a branch; and the suffix of a running compute's lock.
OWN_LOCKS = {"template", "accounts", "extensions", "up", "worker"}
OF_RUNNING = ".running"


class Leftovers:
    """Finds what should not exist any more. Each method returns the names of what it finds."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.state_dir = stack.state_dir

    def looks(self) -> dict[str, Callable[[], list[str]]]:
        """The methods, by the name of their invariant."""
        return {
            "data of what was deleted is gone": self.data,
            "sockets of what was deleted are gone": self.sockets,
            "locks of what was deleted are gone": self.locks,
            "control groups of what was deleted are gone": self.groups,
            "processes of what was deleted are gone": self.homeless,
        }

    def data(self) -> list[str]:
        return self._but("branches/*", self._living("branch"))

    def sockets(self) -> list[str]:
        return self._but("sockets/ep-*", self._living("endpoint"))

    def locks(self) -> list[str]:
        branches = self._living("branch")
        others = {
            f"{kind}{name}" for kind in (CATALOG, HISTORY, POOLER, STANDBY) for name in branches
        }
        return self._but("locks/*", branches | others | OWN_LOCKS)

    def groups(self) -> list[str]:
        """Another service on this host may have groups too."""
        gone = self._ids("SELECT id FROM controlplane_endpoint") - self._living("endpoint")
        groups = [path for root in CGROUPS for path in Path(root, "perch").glob("ep-*")]
        return [str(path) for path in groups if path.name.partition(".")[0] in gone]

    def homeless(self) -> list[str]:
        """Return processes in a branch's directory that belong to no Postgres that serves a
        branch."""
        known: set[int] = set()
        for some in processes.postmasters(self.state_dir).values():
            known.update(process.pid for process in some)
            known.update(child.pid for process in some for child in process.children())
        at_work = processes.at_work_in(self.state_dir / "branches")
        return [f"{pid}: {line}" for pid, line in at_work.items() if pid not in known]

    def _but(self, pattern: str, expected: set[str]) -> list[str]:
        found = self.state_dir.glob(pattern)
        return sorted(
            str(path) for path in found if path.name.removesuffix(OF_RUNNING) not in expected
        )

    def _living(self, table: str) -> set[str]:
        return self._ids(
            f"SELECT one.id FROM controlplane_{table} one JOIN controlplane_project p"
            " ON p.id = project_id WHERE one.deleted_at IS NULL AND p.deleted_at IS NULL"
        )

    def _ids(self, query: str) -> set[str]:
        with self.stack.database() as connection:
            return {str(row[0]) for row in connection.execute(query.encode())}
