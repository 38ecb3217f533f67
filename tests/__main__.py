"""`python -m tests`: every suite in turn, each with the Django settings it is about.

What follows goes to pytest: `python -m tests -x -k reassign`. A suite's folder may be
named first to run it alone: `python -m tests controlplane`.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SUITES = ("proxy", "connections", "controlplane", "console", "browser")
NOTHING_COLLECTED = 5  # pytest's exit status where -k and the like leave a suite nothing


def main(arguments: list[str]) -> int:
    named = [argument for argument in arguments if argument in SUITES]
    options = [argument for argument in arguments if argument not in SUITES]
    failed = []
    for suite in named or SUITES:
        print(f"== tests/{suite}", flush=True)
        command = [sys.executable, "-m", "pytest", str(HERE / suite), *options]
        status = subprocess.run(command, cwd=HERE.parent).returncode
        if status not in (0, NOTHING_COLLECTED):
            failed.append(suite)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
