"""`python -m tests`: every suite, each with the Django settings it is about.

`python -m tests fast` runs only what needs no running service, in less than a minute. A suite's
folder may be named to run it alone: `python -m tests controlplane`. What follows goes to pytest:
`python -m tests -x -k reassign`.

Two runs of pytest go on side by side, each with a service of its own; what each says is printed
at its end. What failed is run once more when nothing is beside it. A test that then passes is
flaky: that fails nothing, but it is named at the end, below its first failure.
"""

import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tests.outcomes import Outcomes

ROOT = Path(__file__).resolve().parent.parent
# The longest first, so that none is left running alone at the end, and into how many runs each
# is divided, for the same reason.
SUITES = {
    "controlplane": 2,
    "connections": 2,
    "console": 1,
    "browser": 1,
    "clients": 1,
    "proxy": 1,
    "packaging": 1,
    "runner": 1,
}
SIDE_BY_SIDE = 2
PLUGINS = ("-p", "tests.selection", "-p", "tests.outcomes")
# pytest's exit statuses.
PASSED, TESTS_FAILED, NOTHING_COLLECTED = 0, 1, 5


@dataclass(frozen=True)
class Part:
    """Of a suite's modules: the number-th of count."""

    suite: str
    number: int
    count: int


@dataclass(frozen=True)
class Run:
    """One run of pytest, ended."""

    suite: str
    name: str
    seconds: float
    outcomes: Outcomes
    # Whether it came to its end: all that failed are tests, and the outcomes name them.
    complete: bool
    output: str


def main(arguments: list[str]) -> int:
    began = time.monotonic()
    named = list(itertools.takewhile(lambda name: name in {"fast", *SUITES}, arguments))
    fast = ["--fast"] if "fast" in named else []
    suites = [suite for suite in SUITES if suite in named] or list(SUITES)
    runs = run_all(parts_of(suites, divided=not fast), [*fast, *arguments[len(named) :]])
    flaky, failed = run_failed_again(runs, fast)
    for test, first_failure in flaky.items():
        print(f"== flaky: {test}, its first failure\n{first_failure}")
    summarize(runs, time.monotonic() - began)
    failed += [f"{run.name}, not run to its end" for run in runs if not run.complete]
    name_all("FLAKY, failed at first and passed alone", flaky)
    name_all("FAILED", failed)
    return 1 if failed else 0


def parts_of(suites: list[str], *, divided: bool) -> list[Part]:
    # Where no service is started, to begin a run costs more than to divide it saves.
    counts = {suite: SUITES[suite] if divided else 1 for suite in suites}
    return [
        Part(suite, number, count)
        for suite, count in counts.items()
        for number in range(1, count + 1)
    ]


def run_all(parts: list[Part], options: list[str]) -> list[Run]:
    """Two at a time, in this order."""
    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        begun = [threads.submit(run_part, part, options) for part in parts]
        for ended in as_completed(begun):
            tell(ended.result())
        return [run.result() for run in begun]


def run_part(part: Part, options: list[str]) -> Run:
    which = f"{part.number}/{part.count}"
    name = f"{part.suite} {which}" if part.count > 1 else part.suite
    only = [f"--part={which}"] if part.count > 1 else []
    return run(part.suite, name, [str(ROOT / "tests" / part.suite), *only, *options])


def run_failed_again(runs: list[Run], options: list[str]) -> tuple[dict[str, str], list[str]]:
    """Run once more, a suite at a time; returns the flaky with their first failures,
    and what has failed for good."""
    flaky: dict[str, str] = {}
    failed: list[str] = []
    for suite in dict.fromkeys(run.suite for run in runs):
        first: dict[str, str] = {}
        for ended in runs:
            first |= ended.outcomes.failures if ended.suite == suite else {}
        if not first:
            continue
        again = run(suite, f"{suite}, once more", [*first, *options])
        tell(again)
        for test, failure in first.items():
            if again.complete and test not in again.outcomes.failures:
                flaky[test] = failure
            else:
                failed.append(test)
    return flaky, failed


def run(suite: str, name: str, arguments: list[str]) -> Run:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        written = Path(directory) / "outcomes"
        cache = f".pytest_cache/{name.replace('/', ' of ')}"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", *PLUGINS, f"--outcomes={written}"),
                *("-o", f"cache_dir={cache}", "--durations=8", *arguments),
            ],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        outcomes = Outcomes.read(written)
    # Where a suite is left nothing by -k and the like, that is no failure.
    complete = outcomes is not None and done.returncode in (
        *(PASSED, NOTHING_COLLECTED),
        *([TESTS_FAILED] if outcomes.failures else []),
    )
    seconds = time.monotonic() - began
    return Run(suite, name, seconds, outcomes or Outcomes(), complete, done.stdout)


def tell(ended: Run) -> None:
    print(f"== tests/{ended.name}\n{ended.output}", flush=True)


def summarize(runs: list[Run], seconds: float) -> None:
    print(f"== summary of {seconds:.0f} s")
    for ended in runs:
        counts = ", ".join(f"{count} {what}" for what, count in ended.outcomes.counts.items())
        print(f"{ended.name:<20}{ended.seconds:>5.0f} s  {counts or 'nothing to run'}")
    left_out = sum(ended.outcomes.left_out for ended in runs)
    if left_out:
        print(f"{left_out} tests were left out: they need a running service, a browser or a wheel.")
    name_all(
        "skipped",
        [f"{test}: {why}" for ended in runs for test, why in ended.outcomes.skipped.items()],
    )


def name_all(title: str, tests: Iterable[str]) -> None:
    for number, test in enumerate(tests):
        print(f"{title}:\n  {test}" if number == 0 else f"  {test}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
