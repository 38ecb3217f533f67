"""The sessions that were signed out of, for as long as a copy of their cookie could be shown.

The console keeps no data, and its sessions live in cookies: that one has ended is the one thing
that a cookie cannot say. Each is an empty file, named after the session, in a directory that
all processes of a console share. Consoles on several hosts each know only their own.
"""

import hashlib
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured


def prepare() -> Path:
    """The directory, made where it is missing. Raises ImproperlyConfigured where it is no place
    of ours alone: whoever can write there could bring sessions back."""
    path = Path(settings.STATE_DIR)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise ImproperlyConfigured(f"PERCH_CONSOLE_STATE_DIR: {error}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ImproperlyConfigured(
            f"PERCH_CONSOLE_STATE_DIR: {path} must be a directory of the account that the console "
            "runs under, and nobody else may write to it"
        )
    return path


def end(session_id: str) -> None:
    """From here on the session has ended, for every process. Raises OSError."""
    directory = prepare()
    forget_old(directory)
    _file(directory, session_id).touch(mode=0o600)


def has_ended(session_id: str) -> bool:
    return _file(Path(settings.STATE_DIR), session_id).exists()


def forget_old(directory: Path) -> None:
    """Remove those whose cookies have expired: all were made before the file was."""
    before = time.time() - settings.SESSION_COOKIE_AGE
    for entry in os.scandir(directory):
        # Another process may remove the same.
        with suppress(FileNotFoundError):
            if entry.stat(follow_symlinks=False).st_mtime < before:
                os.unlink(entry)


def _file(directory: Path, session_id: str) -> Path:
    return directory / hashlib.sha256(session_id.encode()).hexdigest()
