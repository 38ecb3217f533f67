"""`python -m tests`: every suite, each with the Django settings it is about.

What follows goes to pytest: `python -m tests -x -k reassign`. A suite's folder may be
named first to run it alone: `python -m tests controlplane`. Two suites run side by side,
as each waits for its own service most of the time; what each says is printed at its end.
What failed is run once more, alone: a test may have had to wait too long for its turn.
"""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The longest first, so that none is left running alone at the end.
SUITES = ("connections", "controlplane", "console", "proxy", "browser", "packaging")
SIDE_BY_SIDE = 2
# pytest's exit statuses.
PASSED, TESTS_FAILED, NOTHING_COLLECTED = 0, 1, 5


def main(arguments: list[str]) -> int:
    suites = [argument for argument in arguments if argument in SUITES] or list(SUITES)
    options = [argument for argument in arguments if argument not in SUITES]
    failed = []
    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        running = {suite: threads.submit(run, suite, options) for suite in suites}
        for suite, run_of_it in running.items():
            status = tell(suite, run_of_it.result())
            # Where a suite is left nothing by -k and the like, that is no failure.
            if status not in (PASSED, NOTHING_COLLECTED):
                failed.append((suite, status))
    still_failed = [
        suite
        for suite, status in failed
        if status != TESTS_FAILED
        or tell(f"{suite}, once more", run(suite, ["--last-failed", *options])) != PASSED
    ]
    if still_failed:
        print(f"failed: {', '.join(still_failed)}")
    return 1 if still_failed else 0


def tell(name: str, done: "subprocess.CompletedProcess[str]") -> int:
    print(f"== tests/{name}\n{done.stdout}", flush=True)
    return done.returncode


def run(suite: str, options: list[str]) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pytest", str(HERE / suite), "--durations=8", *options]
    return subprocess.run(
        command, cwd=HERE.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
