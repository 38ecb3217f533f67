"""Runs Perch as an ordinary user if the tests run as root."""

import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.stack import ROOT

SOURCES = ("manage.py", "Procfile", "controlplane", "console", "templates", "static")


def as_ordinary_user() -> dict[str, Any]:
    """Keyword arguments for `subprocess`; {} if the tests run as an ordinary user already."""
    if os.geteuid() != 0:
        return {}
    account = pwd.getpwnam("nobody")
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def give_to_ordinary_user(place: Path) -> None:
    """Make that user the owner of `place` and everything below it."""
    if account := as_ordinary_user():
        for path in [place, *place.rglob("*")]:
            os.chown(path, account["user"], account["group"], follow_symlinks=False)


def own_checkout(place: Path) -> Path:
    """Copy what Perch needs to run to `place`, which the user can enter. Only root may have access
    to the checkout."""
    place.mkdir()
    for name in SOURCES:
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, place / name)
    give_to_ordinary_user(place)
    return place


def own_python(environment: Path) -> Path:
    """Make an environment that the user can run, with the packages of the environment that runs the
    tests. Returns its Python. Skips the test if the host has no Python for it."""
    packages = sysconfig.get_path("purelib")
    base = base_python(check="import psycopg", packages=packages)
    if base is None:
        pytest.skip("no Python of this version that an ordinary user can run with our packages")
    subprocess.run([base, "-m", "venv", "--without-pip", environment], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "ours.pth").write_text(f"{packages}\n")
    gunicorn = environment / "bin" / "gunicorn"
    gunicorn.write_text(
        f"#!{environment}/bin/python\nfrom gunicorn.app.wsgiapp import run\nrun()\n"
    )
    gunicorn.chmod(0o755)
    return environment / "bin" / "python"


def base_python(*, check: str = "", packages: str = "") -> str | None:
    """Return a Python of this version that the user can run and with which `check` succeeds, given
    these packages."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    same = f"import sys; assert sys.version_info[:2] == {sys.version_info[:2]}; {check}"
    for base in (os.path.realpath(sys.executable), f"/usr/bin/{version}"):
        with suppress(OSError, subprocess.CalledProcessError):
            subprocess.run(
                [base, "-c", same],
                env={"PYTHONPATH": packages},
                check=True,
                capture_output=True,
                **as_ordinary_user(),
            )
            return base
    return None
