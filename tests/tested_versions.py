"""The versions of all packages with which Perch is tested, as constraints for pip.

`python -m tests.tested_versions` writes those of the present environment to constraints.txt, and
with `--check` only compares: it ends with an error if another version is installed.
"""

import argparse
import sys
import tomllib

from packaging.utils import canonicalize_name

from tests.packaging.installation import needed
from tests.support.stack import ROOT

FILE = ROOT / "constraints.txt"
HEAD = """\
# The versions with which this version of Perch was tested, on Python 3.11. Use them by
# `pip install -c constraints.txt`. Written by `python -m tests.tested_versions`.
"""


def installed() -> dict[str, str]:
    """The installed version of each package that Perch and its extras need, by name. Raises
    metadata.PackageNotFoundError if one is missing."""
    found = needed(requirements())
    return dict(sorted((canonicalize_name(one.name), one.version) for one in found))


def requirements() -> list[str]:
    """What pyproject.toml requires, with all extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = (project["dependencies"], *project["optional-dependencies"].values())
    return [line for one in lists for line in one]


def written() -> dict[str, str]:
    """The versions in constraints.txt, by name."""
    lines = [line for line in FILE.read_text().splitlines() if not line.startswith("#")]
    return {name: version for name, _, version in (line.partition("==") for line in lines)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    found = installed()
    if not parser.parse_args().check:
        FILE.write_text(HEAD + "".join(f"{name}=={found[name]}\n" for name in found))
        return
    lock = written()
    differing = [name for name in {**lock, **found} if lock.get(name) != found.get(name)]
    for name in differing:
        print(f"{name}: constraints.txt has {lock.get(name)}, installed is {found.get(name)}")
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
