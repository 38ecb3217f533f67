"""Prepares a host for processes under accounts of their own: for `up`, if it runs as root, and for
the units of systemd.

The accounts are made if they are missing. Of the state directory, root goes on to own all but what
the table in `process_accounts` gives to others, so that a release without these accounts runs on it
as before.
"""

import os
import shlex
import shutil
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from django.conf import settings

from controlplane import durable
from controlplane.compute.host.accounts import (
    Account,
    AccountUnusable,
    named_account,
    service_account,
    set_owner,
    upgrade_account,
)
from controlplane.process_accounts import (
    KINDS,
    MAY_KEEP_FIGURES,
    VARIABLE,
    console_key,
    in_use,
    keys_of,
)

# Run by an account: fails if it cannot read the code, or what the code needs.
CAN_READ = """
import os, sys
import controlplane.process_accounts, console.logs, django, gunicorn, psycopg
for place in sys.argv[1:]:
    os.listdir(place)
"""
CAN_CONNECT = """
import os
import psycopg
psycopg.connect(os.environ["DATABASE_URL"], connect_timeout=10).close()
"""
CHECK_TIMEOUT = 60.0  # seconds


def choose_accounts() -> str | None:
    """Decide whether processes run under accounts of their own, and tell it to the processes that
    are started from here. Returns a notice for the operator if they cannot; otherwise None."""
    wanted = os.environ.get(VARIABLE, "on") != "off" and os.geteuid() == 0
    problem = _obstacle() if wanted else None
    os.environ[VARIABLE] = "on" if wanted and problem is None else "off"
    if problem is None:
        return None
    return (
        f"All processes run as root, and not under accounts of their own: {problem}. In "
        f"production, install Perch and Python where every account can read them, such as in /opt. "
        f"{VARIABLE}=off ends this notice."
    )


def _obstacle() -> str | None:
    """Why processes cannot run under accounts of their own; None if they can."""
    try:
        for kind in KINDS.values():
            named_account(kind.account)
        # The worker's account could not make it.
        upgrade_account()
    except AccountUnusable as error:
        return str(error)
    places = [str(settings.BASE_DIR / name) for name in ("templates", "static")]
    problem = _failure_of("web", CAN_READ, *places)
    if problem is None and "DATABASE_URL" in os.environ:
        # It may admit root by its name, or read files of root's.
        problem = _failure_of("api", CAN_CONNECT)
    return problem


def _failure_of(kind: str, program: str, *arguments: str) -> str | None:
    """The last words of a Python program that fails as a process of the kind; None if it does not
    fail."""
    launcher = (sys.executable, "-m", "controlplane.process_accounts", kind)
    try:
        done = subprocess.run(
            [*launcher, sys.executable, "-c", program, *arguments],
            cwd=settings.BASE_DIR,
            env={**os.environ, "PERCH_STATE_DIR": str(settings.STATE_DIR)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return None if done.returncode == 0 else lines[-1]


def set_up_files() -> None:
    """Give the processes' accounts what they need of the state directory, also of one that was
    used without them. Otherwise, take the keys away that were copied for them."""
    if not in_use():
        shutil.rmtree(settings.STATE_DIR / "keys", ignore_errors=True)
        return
    _copy_keys()
    web = settings.STATE_DIR / "web"
    web.mkdir(mode=0o700, exist_ok=True)
    set_owner(web, named_account(KINDS["web"].account))
    web.chmod(0o700)
    _share_files()


def prepare_for_units() -> None:
    """Make the accounts of the units' processes, and give these what they need of the state
    directory. Raises AccountUnusable, OSError."""
    settings.STATE_DIR.mkdir(mode=0o711, parents=True, exist_ok=True)
    for kind in KINDS.values():
        named_account(kind.account)
    # The units cannot make these: they may write only below the state directory.
    service_account()
    upgrade_account()
    _share_files()
    _link_address_file()


def _share_files() -> None:
    # The process of the figures reads the certificate in it; the key beside it is root's alone.
    authority = settings.STATE_DIR / "tls"
    authority.mkdir(mode=0o711, exist_ok=True)
    authority.chmod(0o711)
    if settings.METRICS_LISTEN != "off":
        _share_figures()


def launcher() -> str:
    """What a process's command begins with, so that it runs under its account; "%s" stands for its
    kind."""
    if not in_use():
        return ""
    return f"{shlex.quote(sys.executable)} -m controlplane.process_accounts %s "


def prepare_address_file() -> None:
    """Remove the address of the figures, which an earlier run may have left."""
    Path(settings.METRICS_ADDRESS_FILE).unlink(missing_ok=True)
    if in_use() and settings.METRICS_LISTEN != "off":
        _link_address_file()


def _link_address_file() -> None:
    """Make the address of the figures a link. The account of the process that writes it cannot
    write in the state directory."""
    link, place = Path(settings.METRICS_ADDRESS_FILE), Path(settings.METRICS_DIR) / "address"
    for path in (link, place):
        path.unlink(missing_ok=True)
    link.symlink_to(place.relative_to(link.parent))


def _copy_keys() -> None:
    """Write the secret keys for each kind of process that has them. The console gets keys of its
    own, from which the others do not follow."""
    keys = settings.STATE_DIR / "keys"
    keys.mkdir(mode=0o711, exist_ok=True)
    keys.chmod(0o711)
    for name, kind in KINDS.items():
        if not kind.has_secret_key:
            continue
        group = named_account(kind.account).gid
        directory = keys_of(settings.STATE_DIR, name)
        directory.mkdir(mode=0o700, exist_ok=True)
        set_owner(directory, Account(0, group))
        directory.chmod(0o710)
        secrets = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
        if name == "web":
            secrets = [console_key(secret) for secret in secrets]
        _write(directory / "secret-key", secrets[0], group)
        _write(directory / "secret-key-fallbacks", "\n".join(secrets[1:]), group)


def _write(path: Path, content: str, group: int) -> None:
    """Write the file, which the group may read."""
    durable.write(path, content.encode(), 0o600)
    set_owner(path, Account(0, group))
    path.chmod(0o640)


def _share_figures() -> None:
    """Let the processes that keep figures make files in their directory. Others may only pass
    through, to the address."""
    directory = Path(settings.METRICS_DIR)
    directory.mkdir(mode=0o700, exist_ok=True)
    group = named_account(MAY_KEEP_FIGURES).gid
    for path in directory.iterdir():
        # A process may have put something else there.
        with suppress(OSError):
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                found = os.fstat(file)
                if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                    os.fchown(file, -1, group)
                    os.fchmod(file, 0o640)
            finally:
                os.close(file)
    set_owner(directory, Account(0, group))
    # Files in it belong to its group.
    directory.chmod(0o2771)
