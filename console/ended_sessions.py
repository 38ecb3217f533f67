"""The sign-ins that have ended, for as long as a copy of their cookie could be shown.

The console keeps no data, and its sessions live in cookies: that a sign-in has ended is the one
thing that a cookie cannot say. Each is an empty file, named after the sign-in, in a directory that
all processes of a console share; another kind is named after a key, and says when everybody was
signed out who had signed in with it. Consoles on several hosts each know only their own.
"""

import hashlib
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.crypto import salted_hmac


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


def end(sign_in_id: str) -> None:
    """From here on the sign-in has ended, for every process. Raises OSError."""
    directory = prepare()
    forget_old(directory)
    _file(directory, sign_in_id).touch(mode=0o600)


def has_ended(sign_in_id: str) -> bool:
    return _file(Path(settings.STATE_DIR), sign_in_id).exists()


def end_key(secret: str) -> None:
    """From here on all that were begun with the key have ended. Raises OSError."""
    directory = prepare()
    forget_old(directory)
    file = _file_of_key(directory, secret)
    file.touch(mode=0o600)
    # To the moment: the file system's own clock lags behind.
    os.utime(file, ns=(now := time.time_ns(), now))


def key_has_ended(secret: str, *, since: float) -> bool:
    """Whether one that was begun at `since`, as time.time() has it, was ended with its key."""
    try:
        ended = _file_of_key(Path(settings.STATE_DIR), secret).stat().st_mtime_ns
    except FileNotFoundError:
        return False
    return since * 1e9 <= ended


def forget_old(directory: Path) -> None:
    """Remove those whose cookies have expired: all were made before the file was."""
    before = time.time() - settings.SESSION_COOKIE_AGE
    for entry in os.scandir(directory):
        # Another process may remove the same; folders hold what is forgotten elsewhere.
        with suppress(FileNotFoundError):
            is_file = entry.is_file(follow_symlinks=False)
            if is_file and entry.stat(follow_symlinks=False).st_mtime < before:
                os.unlink(entry)


def _file(directory: Path, sign_in_id: str) -> Path:
    return directory / hashlib.sha256(sign_in_id.encode()).hexdigest()


def _file_of_key(directory: Path, secret: str) -> Path:
    """Named so that nobody who lists the directory can try out keys."""
    return directory / salted_hmac("perch ended key", secret, algorithm="sha256").hexdigest()
