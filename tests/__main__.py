"""`python -m tests`: every suite, each with the Django settings it is about.

What follows goes to pytest: `python -m tests -x -k reassign`. A suite's folder may be
named first to run it alone: `python -m tests controlplane`. Two suites run side by side,
as each waits for its own service most of the time; what each says is printed at its end.
"""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The longest first, so that none is left running alone at the end.
SUITES = ("connections", "controlplane", "console", "proxy", "browser")
SIDE_BY_SIDE = 2
NOTHING_COLLECTED = 5  # pytest's exit status where -k and the like leave a suite nothing


def main(arguments: list[str]) -> int:
    suites = [argument for argument in arguments if argument in SUITES] or list(SUITES)
    options = [argument for argument in arguments if argument not in SUITES]
    failed = []
    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        running = {suite: threads.submit(run, suite, options) for suite in suites}
        for suite, run_of_it in running.items():
            done = run_of_it.result()
            print(f"== tests/{suite}\n{done.stdout}", flush=True)
            if done.returncode not in (0, NOTHING_COLLECTED):
                failed.append(suite)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def run(suite: str, options: list[str]) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pytest", str(HERE / suite), "--durations=8", *options]
    return subprocess.run(
        command, cwd=HERE.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
