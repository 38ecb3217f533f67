"""Perch as a wheel in an environment of its own, without access to the checkout.

Its dependencies are linked from the environment that runs the tests, and only those that the wheel
itself requires: a missing requirement is missing here too.
"""

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.stack import ROOT

SOURCES = (
    *("manage.py", "pyproject.toml", "Procfile", "README.md", "CHANGELOG.md", "LICENSE"),
    *(".ci", "console", "controlplane", "deploy", "templates", "static", "tests"),
)
# The time of the commit that is built, in seconds.
BUILT_AT = "1700000000"


def fresh_clone(place: Path) -> Path:
    """Copy the sources to `place`, without what earlier builds have left in the checkout."""
    place.mkdir(parents=True)
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "node_modules")
            shutil.copytree(ROOT / name, place / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, place / name)
    return place


def build(clone: Path, built: Path, *tag: str) -> "subprocess.CompletedProcess[str]":
    """Run .ci/build in the clone, as a release does."""
    return subprocess.run(
        [clone / ".ci" / "build", built, *tag],
        env={**os.environ, "PYTHON": sys.executable, "SOURCE_DATE_EPOCH": BUILT_AT},
        capture_output=True,
        text=True,
    )


def build_wheel(place: Path) -> Path:
    """Build the wheel from the source distribution, as for a release. Returns its path."""
    done = build(fresh_clone(place / "checkout"), place / "built")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    (wheel,) = (place / "built").glob("*.whl")
    return wheel


@dataclass(frozen=True)
class Installation:
    """An environment with the wheel."""

    path: Path
    # An empty directory in which programs run.
    folder: Path

    @property
    def bin(self) -> Path:
        return self.path / "bin"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of its programs. None leads to the checkout."""
        return {
            "PATH": f"{self.bin}:{os.defpath}",
            "HOME": str(self.folder),
            "PERCH_STATE_DIR": str(self.folder / "state"),
        }

    def run(self, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [self.bin / program, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )


def install(wheel: Path, place: Path, *extras: str) -> Installation:
    """Install the wheel with these extras in `place`."""
    installation = Installation(place / "environment", place / "folder")
    installation.folder.mkdir(parents=True)
    venv.create(installation.path, symlinks=True, with_pip=False)
    python = installation.bin / "python"
    options = ["--no-deps", "--no-index", "--disable-pip-version-check"]
    _run(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel, cwd=place)
    (site,) = installation.path.glob("lib/python*/site-packages")
    (perch,) = metadata.distributions(name="perch-postgres", path=[str(site)])
    for distribution in needed(perch.requires or (), extras):
        _link(distribution, site)
        for script in distribution.entry_points.select(group="console_scripts"):
            _write_script(script, installation.bin)
    return installation


def needed(
    requirements: Iterable[str], extras: tuple[str, ...] = ()
) -> Iterator[metadata.Distribution]:
    """Return what these requirements need, directly and indirectly, of a package with `extras`.
    Raises metadata.PackageNotFoundError."""
    pending, known = [(requirements, extras)], set()
    while pending:
        lines, asked = pending.pop()
        for line in lines:
            wanted = Requirement(line)
            scopes = [{"extra": extra} for extra in ("", *asked)]
            if wanted.marker and not any(map(wanted.marker.evaluate, scopes)):
                continue
            if (key := (wanted.name, *sorted(wanted.extras))) in known:
                continue
            known.add(key)
            found = metadata.distribution(wanted.name)
            pending.append((found.requires or (), tuple(wanted.extras)))
            yield found


def _link(distribution: metadata.Distribution, site: Path) -> None:
    for name in {file.parts[0] for file in distribution.files or ()}:
        # Programs are outside; compiled files of single modules share a directory.
        if name not in ("..", "__pycache__") and not (site / name).exists():
            (site / name).symlink_to(Path(str(distribution.locate_file(name))))


def _write_script(script: metadata.EntryPoint, folder: Path) -> None:
    path = folder / script.name
    path.write_text(
        f"#!{folder / 'python'}\nfrom {script.module} import {script.attr}\n{script.attr}()\n"
    )
    path.chmod(0o755)


def _run(*command: str | Path, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
