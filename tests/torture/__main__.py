"""`python -m tests.torture --seed N --minutes M`: checks that the service stays consistent.

Many actors use a service of their own while its processes are killed and stopped at random, its
disk is filled and its clock is shifted. The seed determines what each actor does, but not the
result, because threads and processes run independently.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.torture.ground import ground
from tests.torture.run import summary, torture
from tests.torture.world import Size


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture")
    parser.add_argument("--seed", type=int, default=1, help="decides what everybody does")
    parser.add_argument("--minutes", type=float, default=60, help="how long the service is struck")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix=f"perch-torture-{options.seed}-", dir="/tmp"))
    print(f"seed {options.seed}; the journal is written to {directory}/journal.jsonl", flush=True)
    with ground(directory) as place:
        journal = torture(options.seed, options.minutes * 60, Size(), place, directory=directory)
    print(summary(journal))
    if journal.breaks:
        print(f"what the logs say of it: {directory}/evidence.txt")
    return 1 if journal.breaks else 0


if __name__ == "__main__":
    sys.exit(main())
