"""`python -m tests.benchmarks.history [--small] [PART…]`: the cost of keeping history, beside the
same without it, and of a branch of a past moment, beside one of the present.

Everything is on a disk that shares blocks (XFS). `--small` is for trying it out: its figures do not
count. The parts: `suspends`, `pgbench`, `branches`.
"""

import argparse
import os
import re
import statistics
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import django

from controlplane.compute.host.binaries import postgres_bin
from tests.support.filesystems import mounted
from tests.support.past import history, with_history
from tests.support.project import Project
from tests.support.stack import Stack, running_stack

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


SMALL = Rounds(4, 2, 5, 5, 3)


def main() -> None:
    parts = {
        "suspends": measure_suspends,
        "pgbench": measure_pgbench,
        "branches": measure_branches,
    }
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.history")
    parser.add_argument("--small", action="store_true", help="a short run, to try it out")
    parser.add_argument("parts", nargs="*", metavar="PART", choices=[[], *parts])
    options = parser.parse_args()
    os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    django.setup()
    for name in options.parts or parts:
        began = time.monotonic()
        with mounted("xfs", size=DISK) as place, running_stack(place) as stack:
            parts[name](stack, SMALL if options.small else Rounds())
        load = os.getloadavg()[0]
        print(f"  {name}: {time.monotonic() - began:.0f} s, load {load:.1f}", flush=True)


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
