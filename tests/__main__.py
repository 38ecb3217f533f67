"""`python -m tests [fast|thorough] [SUITE …] [OPTION …]`: runs every suite, each with its Django
settings.

`fast` runs only tests that are quick and need no running service. `thorough` runs everything.
Without a tier, costly tests are left out if a cheaper one of the same kind runs. If suites are
named, only these run: `python -m tests controlplane`. Options go to pytest: `python -m tests -x -k
reassign`.

The services' state directories are in memory if it has room: on a disk, copying and syncing files
takes most of a test's time. The tier `thorough` and benchmarks use the disk.

A failed test is run once more. If it then passes, it is flaky: it does not fail the run, but is
named at the end, below its first failure.
"""

import itertools
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.outcomes import Outcomes
from tests.support.stack import DIRECTORY, SHARED, remove_abandoned, shared_stacks
from tests.support.waiting import slowness

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
SUITES = (
    *("runner", "controlplane", "connections", "console", "browser"),
    *("proxy", "clients", "packaging"),
)
CORES = os.cpu_count() or 1
WORKERS = min(CORES, 4)
# So many suites run at once: while one starts or waits for its last test, another uses the cores.
AT_ONCE = {"fast": CORES, "default": 2, "thorough": 1}
# The order of suites that run at once.
LONGEST_FIRST = ("controlplane", "browser", "console", "clients", "proxy", "connections")
# The most seconds that a whole tier may take on two idle cores. The thorough tier has no limit.
BOUNDS = {"fast": 60, "default": 600}
# Seconds after which a test counts as hung, and fails, and those after which a suite is ended: far
# longer than any takes on a busy machine. What hung is not run again.
HANGS_AFTER = {"fast": 600, "default": 600, "thorough": 1800}
ENDED_AFTER = {"fast": 3600, "default": 3600, "thorough": 36_000}
# With this variable every process that a test starts would compile all modules again.
NO_COMPILED = "PYTHONDONTWRITEBYTECODE"
# A filesystem in memory, and the bytes of it that a run may need.
MEMORY, MEMORY_BYTES = Path("/dev/shm"), 5 << 30
# pytest's exit statuses.
PASSED, TESTS_FAILED, NOTHING_COLLECTED = 0, 1, 5


@dataclass(frozen=True)
class Run:
    """A finished run of pytest."""

    suite: str
    seconds: float
    # Processor time of all processes that the run started.
    cpu_seconds: float
    outcomes: Outcomes
    # Whether it was completed: every failure is a test's, and the outcomes name it.
    complete: bool


def main(arguments: Sequence[str]) -> int:
    began = time.monotonic()
    named = list(itertools.takewhile({"fast", "thorough", *SUITES}.__contains__, arguments))
    tier = next((tier for tier in ("fast", "thorough") if tier in named), "default")
    options = arguments[len(named) :]
    suites = [suite for suite in SUITES if suite in named] or list(SUITES)
    at_once = AT_ONCE[tier]
    remove_abandoned(MEMORY)
    if tier != "thorough" and not uses_memory(tier):
        print(
            f"The tests use the disk, which takes longer: {MEMORY} lacks the {MEMORY_BYTES >> 30} "
            "GB that they need there."
        )
    if at_once > 1:
        suites.sort(key=[*LONGEST_FIRST, *SUITES].index)
    with services(tier, suites) as free, ThreadPoolExecutor(at_once) as side_by_side:

        def run_on_free_services(suite: str) -> Run:
            directory = free.get()
            try:
                return run(TESTS / suite, tier, options, directory)
            finally:
                free.put(directory)

        runs = list(side_by_side.map(run_on_free_services, suites))
    for ended in runs:
        outcomes = ended.outcomes
        for kind, tests in (("flaky", outcomes.flaky), ("failed twice", outcomes.failed_before)):
            for test, first_failure in tests.items():
                print(f"== {kind}: {test}, its first failure\n{first_failure}")
    summarize(runs, time.monotonic() - began, tier if len(suites) == len(SUITES) else None)
    failed = [test for ended in runs for test in ended.outcomes.failures]
    failed += [f"{ended.suite}, not run to its end" for ended in runs if not ended.complete]
    name_all(
        "FLAKY, failed at first and then passed",
        [test for ended in runs for test in ended.outcomes.flaky],
    )
    name_all("FAILED", failed)
    return 1 if failed else 0


@contextmanager
def services(tier: str, suites: Sequence[str]) -> Iterator["SimpleQueue[Path | None]"]:
    """For each suite of those that run at once, the directory of its workers' services, which the
    next suite uses after it; None if each suite starts its own, as in other tiers."""
    free: SimpleQueue[Path | None] = SimpleQueue()
    with ExitStack() as running:
        if tier == "default" and len(suites) > 1:
            os.environ.update(environment(tier))
            os.environ.pop(NO_COMPILED, None)
            lanes = [f"{number}" for number in range(AT_ONCE[tier])]
            workers = [f"gw{number}" for number in range(WORKERS)]
            for directory in running.enter_context(shared_stacks(lanes, workers)):
                free.put(directory)
        else:
            for _ in range(AT_ONCE[tier]):
                free.put(None)
        yield free


def run(suite: Path, tier: str, options: Sequence[str], services: Path | None = None) -> Run:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory, ExitStack() as at_end:
        written = Path(directory) / "outcomes"
        command = [
            *(sys.executable, "-m", "pytest", "-p", "tests.outcomes", f"--outcomes={written}"),
            *("-o", f"cache_dir={ROOT}/.pytest_cache/{suite.name}", "--durations=8", "-q"),
            *(f"--tier={tier}", "--reruns=1", f"--timeout={HANGS_AFTER[tier]}"),
            *("--rerun-except=from pytest-timeout", str(suite), *options),
        ]
        output = None
        if AT_ONCE[tier] > 1:
            # The output of suites that run side by side is printed when each has ended.
            output = at_end.enter_context((Path(directory) / "output").open("w+"))
        print(f"== tests/{suite.name} started", flush=True)
        # Starting workers of pytest-xdist takes longer than most of the fast tests.
        if tier != "fast":
            command += [f"--numprocesses={WORKERS}", "--dist=worksteal"]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(tier) | ({SHARED: str(services)} if services else {}),
            stdin=subprocess.DEVNULL,
            stdout=output,
        )
        end = threading.Timer(ENDED_AFTER[tier], process.send_signal, [signal.SIGINT])
        end.daemon = True
        end.start()
        # With the processor time of all descendants that were waited for.
        _, status, used = os.wait4(process.pid, 0)
        end.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        outcomes = Outcomes.read(written)
        if output:
            output.seek(0)
            print(f"== tests/{suite.name}\n{output.read()}", flush=True)
    # A suite in which -k or a similar option leaves no test has not failed. Without such options,
    # workers that die while they collect look the same.
    complete = outcomes is not None and process.returncode in (
        *([PASSED] if outcomes.counts else []),
        *([NOTHING_COLLECTED] if options else []),
        *([TESTS_FAILED] if outcomes.failures else []),
    )
    return Run(
        suite=suite.name,
        seconds=time.monotonic() - began,
        cpu_seconds=used.ru_utime + used.ru_stime,
        outcomes=outcomes or Outcomes(),
        complete=complete,
    )


def environment(tier: str) -> dict[str, str]:
    variables = {**os.environ}
    if uses_memory(tier):
        variables.setdefault(DIRECTORY, str(MEMORY))
    variables.pop(NO_COMPILED, None)
    return variables


def uses_memory(tier: str) -> bool:
    is_there = MEMORY.is_dir() and os.access(MEMORY, os.W_OK)
    return tier != "thorough" and is_there and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES


def summarize(runs: Sequence[Run], seconds: float, tier: str | None) -> None:
    # With that of services that suites share.
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = children.ru_utime + children.ru_stime
    print(f"== summary of {seconds:.0f} s, {used:.0f} s of the processor")
    for ended in runs:
        counts = ", ".join(f"{count} {what}" for what, count in ended.outcomes.counts.items())
        times = f"{ended.seconds:>5.0f} s {ended.cpu_seconds:>5.0f} s"
        print(f"{ended.suite:<14}{times}  {counts or 'nothing to run'}")
    left_out = sum(ended.outcomes.left_out for ended in runs)
    if left_out:
        print(f"{left_out} tests were left out; `python -m tests thorough` runs all.")
    bound = BOUNDS.get(tier or "")
    if bound and seconds > bound:
        print(
            f"It took longer than the {bound} s that it may take on two idle cores. Now these are "
            f"{slowness():.1f} times slower than fast ones."
        )
    name_all(
        "skipped",
        [f"{test}: {why}" for ended in runs for test, why in ended.outcomes.skipped.items()],
    )


def name_all(title: str, tests: Iterable[str]) -> None:
    for number, test in enumerate(tests):
        print(f"{title}:\n  {test}" if number == 0 else f"  {test}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
