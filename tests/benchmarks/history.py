"""`python -m tests.benchmarks.history [--small] [PART…]`: the cost of keeping history, beside the
same without it, and of a branch of a past moment, beside one of the present.

Everything is on a disk that shares blocks (XFS). `--small` is for trying it out: its figures do not
count. The parts: `suspends`, `pgbench`, `branches`, `idle`, `base`, `day`.
"""

import argparse
import os
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import django
import psutil

from controlplane.compute.binaries import postgres_bin
from tests.benchmarks.filling import add_crowd, analyze, set_history
from tests.support.filesystems import mounted
from tests.support.past import history, with_history
from tests.support.processes import processes_of
from tests.support.project import Project
from tests.support.stack import Stack, running_stack
from tests.support.waiting import wait_for

DISK = 24 << 30  # bytes
# Rows that make about 24 MiB of log.
ROWS = 20_000


@dataclass(frozen=True)
class Rounds:
    suspends: int = 40
    pgbench: int = 6
    pgbench_seconds: int = 30
    pgbench_scale: int = 20
    branches: int = 15
    idle: int = 5
    idle_seconds: int = 60
    base_megabytes: int = 1000
    bases: int = 5
    minutes: int = 1440
    sleeps: int = 144


SMALL = Rounds(4, 2, 5, 5, 3, 1, 15, 200, 2, 60, 10)


def main() -> None:
    parts = {
        "suspends": on_a_service(measure_suspends),
        "pgbench": on_a_service(measure_pgbench),
        "branches": on_a_service(measure_branches),
        "idle": on_a_service(measure_idle),
        "base": on_a_disk("base"),
        "day": on_a_disk("day"),
    }
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.history")
    parser.add_argument("--small", action="store_true", help="a short run, to try it out")
    parser.add_argument("parts", nargs="*", metavar="PART", choices=[[], *parts])
    options = parser.parse_args()
    os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    django.setup()
    for name in options.parts or parts:
        began = time.monotonic()
        parts[name](SMALL if options.small else Rounds())
        load = os.getloadavg()[0]
        print(f"  {name}: {time.monotonic() - began:.0f} s, load {load:.1f}", flush=True)


def on_a_service(measure: Callable[[Stack, Rounds], None]) -> Callable[[Rounds], None]:
    def run(rounds: Rounds) -> None:
        with mounted("xfs", size=DISK) as place, running_stack(place) as stack:
            measure(stack, rounds)

    return run


def on_a_disk(name: str) -> Callable[[Rounds], None]:
    """A part that works on a branch in this process."""

    def run(rounds: Rounds) -> None:
        # It imports the models, for which Django must be set up.
        from tests.benchmarks import history_disk

        if name == "base":
            history_disk.measure_base(rounds.base_megabytes, rounds.bases)
        else:
            history_disk.measure_day(rounds.minutes, rounds.sleeps)

    return run


def contestants(stack: Stack) -> tuple[Project, Project]:
    """A project without history, and one with it."""
    client = stack.client()
    without = Project.create(stack, client, history_retention_seconds=0)
    return without, with_history(Project.create(stack, client))


def measure_suspends(stack: Stack, rounds: Rounds) -> None:
    """Suspend a compute that committed a row: its history has log to copy after each suspend."""
    both = contestants(stack)
    took: Mapping[str, list[float]] = {project.id: [] for project in both}
    for project in both:
        project.sql("CREATE TABLE visit (at timestamptz)")
    for _ in range(rounds.suspends):
        for project in both:
            project.start()
            project.sql("INSERT INTO visit VALUES (now())")
            answer = project.suspend()
            took[project.id].append(duration(project, answer))
    compare("an idle suspend", *took.values(), unit="ms", target="at most 1.25")


def measure_pgbench(stack: Stack, rounds: Rounds) -> None:
    both = contestants(stack)
    rates: Mapping[str, list[float]] = {project.id: [] for project in both}
    for project in both:
        # Sessions of the platform do not keep a compute from being suspended.
        project.change(suspend_timeout_seconds=-1)
        pgbench(project, "--initialize", "--quiet", f"--scale={rounds.pgbench_scale}")
    for _ in range(rounds.pgbench):
        for project in both:
            project.sql("CHECKPOINT")
            output = pgbench(project, "--client=4", f"--time={rounds.pgbench_seconds}")
            found = re.search(r"tps = ([\d.]+)", output)
            assert found is not None
            rates[project.id].append(float(found[1]))
    print(f"  {len(history(both[1])['bases'])} bases were taken")
    compare("pgbench", *rates.values(), unit="transactions/s", target="at least 0.95")


def pgbench(project: Project, *options: str) -> str:
    done = subprocess.run(
        [postgres_bin() / "pgbench", "--no-vacuum", *options, "neondb"],
        env={
            **os.environ,
            "PGHOST": str(project.stack.state_dir / "sockets" / project.endpoint_id),
            "PGUSER": "perch_platform",
        },
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def measure_branches(stack: Stack, rounds: Rounds) -> None:
    """Branch a running branch with so much log since its base, at present and in the past."""
    project = with_history(Project.create(stack, stack.client()))
    project.sql("CREATE TABLE wide AS SELECT 1 AS i, repeat('x', 1000) AS words")
    project.sql(f"INSERT INTO wide SELECT i, repeat('x', 1000) FROM generate_series(1, {ROWS}) i")
    ((at,),) = project.sql("SELECT clock_timestamp()")
    present: list[float] = []
    past: list[float] = []
    then = {"parent_timestamp": at.isoformat()}
    for _ in range(rounds.branches):
        for times, moment in ((present, {}), (past, then)):
            made = project.new_branch(**moment)
            times.append(duration(project, made))
            project.done(project.client.delete(project.branch_path(made["branch"]["id"])))
    steps = project.operation(made["operations"][0]["id"])["steps"]
    (added,) = [step["detail"] for step in steps if step["name"] == "adding_log"]
    print(f"  {added['of_bytes'] >> 20} MiB of log were added")
    compare("a branch of a past moment", present, past, unit="ms", target="at most 3")


def measure_idle(stack: Stack, rounds: Rounds) -> None:
    """The worker's processor time with 10,000 idle branches, with and without history."""
    add_crowd(stack, 1000, 10)
    without: list[float] = []
    with_history: list[float] = []
    for _ in range(rounds.idle):
        for shares in (without, with_history):
            set_history(stack, has_history=shares is with_history)
            analyze(stack)
            # The rounds look at every branch once after such a change.
            wait_for(lambda: worker_share(stack, 5) < 50, "the worker to be done", timeout=300)
            shares.append(worker_share(stack, rounds.idle_seconds))
    compare(
        "the worker, 10,000 idle branches",
        *(without, with_history),
        unit="% of a core",
        target="at most 1",
    )


def worker_share(stack: Stack, seconds: float) -> float:
    """Percent of a core that the worker's processes use."""
    found = processes_of(stack, "worker")
    before = sum(map(used, found))
    time.sleep(seconds)
    return (sum(map(used, found)) - before) / seconds * 100


def used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def duration(project: Project, answer: Any) -> float:
    """Milliseconds that the response's only operation took."""
    (operation,) = answer["operations"]
    return float(project.operation(operation["id"])["total_duration_ms"])


def compare(
    name: str, without: list[float], with_history: list[float], *, unit: str, target: str
) -> None:
    before, after = statistics.median(without), statistics.median(with_history)
    print(f"{name}: {before:.1f} and {after:.1f} {unit}, {after / before:.2f} (target: {target})")


if __name__ == "__main__":
    main()
