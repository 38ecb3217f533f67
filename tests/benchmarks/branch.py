"""`python -m tests.benchmarks.branch`: the time from asking for a branch of head with an endpoint
until its first row.

Each round measures, one after the other on the same disk: a branch of the active parent, one of the
idle parent, and the least that both need: `cp --reflink` of the idle parent's data directory, and a
bare `postgres` on that copy until its first row. `--cold` empties the kernel's caches before each.
The client connects at once, as one does with the address in the response; the proxy lets it wait.

`--filesystem` mounts a new filesystem in a file (only root can); otherwise the service is in /tmp.
`--series` then makes so many branches one after another, and compares the first with the last.

The parts of a branch's time come from the steps of its operations, so they are what users see.
"""

import argparse
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.start import report, time_bare_in
from tests.benchmarks.wake import Parts, moment, time_wake
from tests.support.filesystems import mounted
from tests.support.processes import held_still
from tests.support.project import Project
from tests.support.stack import Stack, new_state_dir, running_stack

# Of the file with the filesystem, which takes what is written to it.
IMAGE_BYTES = 40 << 30
ROW_BYTES = 1000
# Branches compared at each end of a series, and the branches of each of its projects.
ENDS, PER_PROJECT = 50, 250
TARGET_P50, TARGET_BEYOND = 300, 200  # milliseconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--filesystem", choices=["xfs", "ext4"])
    parser.add_argument("--megabytes", type=int, default=1000, help="of the parent's table")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cold", action="store_true", help="empty the kernel's caches each time")
    parser.add_argument("--series", type=int, default=0, help="branches made one after another")
    options = parser.parse_args()
    with (
        state_directory(options.filesystem) as state_dir,
        running_stack(state_dir, PERCH_HISTORY_STORE="") as stack,
    ):
        project = Project.create(stack, stack.client(), name="benchmark")
        fill(project, options.megabytes)
        kind = options.filesystem or "the host's filesystem"
        print(f"{kind}, a parent of {options.megabytes} MB, {'cold' if options.cold else 'warm'}")
        measure(project, options.rounds, cold=options.cold)
        if options.series:
            measure_series(stack, options.series)


@contextmanager
def state_directory(filesystem: str | None) -> Iterator[Path]:
    if filesystem is None:
        with new_state_dir() as directory:
            yield directory
    else:
        with mounted(filesystem, size=IMAGE_BYTES) as directory:
            yield directory


def fill(project: Project, megabytes: int) -> None:
    with project.compute() as connection:
        connection.execute("CREATE TABLE filled (number int, text text STORAGE PLAIN)")
        connection.execute(
            "INSERT INTO filled SELECT n, repeat('x', %s) FROM generate_series(1, %s) n",
            [ROW_BYTES, megabytes * 1000],
        )
        connection.execute("CHECKPOINT")


def measure(project: Project, rounds: int, *, cold: bool) -> None:
    active, idle, copies, bare = [], [], [], []
    parts: dict[str, list[Parts]] = {"active": [], "idle": []}

    def timed(measured: Callable[[], float]) -> float:
        os.sync()
        if cold:
            Path("/proc/sys/vm/drop_caches").write_text("3")
        return measured()

    copy = project.stack.data_dir(project.branch_id).parent.parent / ".benchmark"
    for _ in range(rounds):
        project.start()
        change(project)
        active.append(timed(lambda: time_branch(project, parts["active"])))
        project.suspend()
        idle.append(timed(lambda: time_branch(project, parts["idle"])))
        with held_still(project.stack, "worker"):
            copies.append(timed(lambda: time_copy(project, copy)))
            bare.append(time_bare_in(project.stack, project.endpoint(), copy))
            subprocess.run(["rm", "-r", copy], check=True)
    report("cp --reflink", copies)
    report("bare postgres", bare)
    least = statistics.median(copies) + statistics.median(bare)
    for name, samples in (("active", active), ("idle", idle)):
        report(f"of {name} parent", samples)
        for part in dict.fromkeys(part for one in parts[name] for part in one):
            of_part = [one.get(part, 0.0) for one in parts[name]]
            print(f"  {part:<40} {statistics.median(of_part):6.1f} ms")
        median = statistics.median(samples)
        print(
            f"of {name} parent: p50 {median:.0f} ms (target: at most {TARGET_P50}), "
            f"{median - least:.0f} beyond copy and start (target: at most {TARGET_BEYOND})"
        )


def change(project: Project) -> None:
    """Change some pages, as clients do between two branches."""
    project.sql("UPDATE filled SET number = -number WHERE number BETWEEN 1 AND 1000")


def time_branch(project: Project, parts: list[Parts]) -> float:
    """Return the milliseconds from the request until the branch's first row. Deletes the branch
    afterwards."""
    began, at = time.perf_counter(), time.time()
    made = project.client.post(
        f"{project.path}/branches", {"endpoints": [{"type": "read_write"}], "branch": {}}
    )
    answered = time.perf_counter()
    time_wake(made["connection_uris"][0]["connection_uri"])
    took = (time.perf_counter() - began) * 1000
    project.client.finish(made)
    parts.append(parts_of(project, made["operations"], at, (answered - began) * 1000, took))
    project.done(project.client.delete(project.branch_path(made["branch"]["id"])))
    return took


def parts_of(
    project: Project, operations: list[Any], began: float, answered: float, took: float
) -> Parts:
    """Return the parts of the time of a branch that was asked for at `began` (wall clock): of the
    request, and of each step of its operations."""
    parts, before = {"request answered": answered}, began + answered / 1000
    for operation in operations:
        for step in project.operation(operation["id"])["steps"]:
            end = step.get("finished_at")
            if end is None or moment(end) <= before:
                continue
            name = f"{operation['action']}: {step['name']}"
            parts[name] = parts.get(name, 0.0) + (moment(end) - before) * 1000
            before = moment(end)
    parts["told, joined, first row"] = (began + took / 1000 - before) * 1000
    return parts


def time_copy(project: Project, target: Path) -> float:
    began = time.perf_counter()
    source = project.stack.data_dir(project.branch_id)
    subprocess.run(["cp", "-a", "--reflink=auto", source, target], check=True)
    return (time.perf_counter() - began) * 1000


def measure_series(stack: Stack, count: int) -> None:
    """Make so many branches without an endpoint, in as many projects as are needed."""
    samples: list[float] = []
    while len(samples) < count:
        project = Project.create(stack, stack.client())
        for _ in range(min(PER_PROJECT, count - len(samples))):
            began = time.perf_counter()
            project.new_branch()
            samples.append((time.perf_counter() - began) * 1000)
    report(f"first {ENDS}", samples[:ENDS])
    report(f"last {ENDS} of {count:,}", samples[-ENDS:])


if __name__ == "__main__":
    main()
