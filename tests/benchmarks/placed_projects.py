"""The part `placement` of `tests.benchmarks.hosts`: 1,000 projects on five hosts of different size,
by `tests/controlplane/test_placement.py`, which fails if the spread is not that of the sizes. The
projects are rows only: a host is chosen by what its worker has published."""

import subprocess
import sys

from tests.support.stack import ROOT

TEST = (
    "tests/controlplane/test_placement.py::test_a_thousand_projects_on_five_hosts_of_different_size"
)


def main() -> None:
    # It needs settings and a database of its own, as all tests of the control plane do.
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", TEST],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = done.stdout.splitlines()
    print(
        "\n".join(line for line in lines if "projects" in line)
        if not done.returncode
        else done.stdout
    )
    done.check_returncode()
