"""The sign-ins that have ended, kept for as long as a copy of their cookie could be used.

The console stores no other data. Its sessions live in cookies, and a cookie cannot tell that its
sign-in has ended. So each ended sign-in is an empty file, named after the sign-in, in a directory
that all processes of a console share. A file of another kind is named after an API key; its time
is when all sign-ins with that key were ended. Consoles on several hosts know only their own files.
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

from console.turns import in_turns

# Seconds between two searches of the directory for old files.
SEARCH_INTERVAL = 600.0
# When it was last searched, a time of time.monotonic().
_searched_at = float("-inf")


def prepare() -> Path:
    """Return the directory, made if it is missing. Raises ImproperlyConfigured if others may write
    to it: they could make ended sessions valid."""
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
    """End the sign-in, for every process. Raises OSError."""
    directory = prepare()
    forget_old(directory)
    _file(directory, sign_in_id).touch(mode=0o600)


def has_ended(sign_in_id: str) -> bool:
    return _file(Path(settings.STATE_DIR), sign_in_id).exists()


def end_key(secret: str) -> None:
    """End all sign-ins that were begun with the key until now. Raises OSError."""
    directory = prepare()
    forget_old(directory)
    file = _files_of_key(directory, secret)[0]
    file.touch(mode=0o600)
    # Set the exact time: the file system's own clock lags behind.
    os.utime(file, ns=(now := time.time_ns(), now))


def key_has_ended(secret: str, *, since: float) -> bool:
    """Whether a sign-in begun at `since`, a time of time.time(), was ended with its key."""
    for file in _files_of_key(Path(settings.STATE_DIR), secret):
        with suppress(FileNotFoundError):
            if since * 1e9 <= file.stat().st_mtime_ns:
                return True
    return False


def forget_old(directory: Path) -> None:
    """Remove the files whose cookies have expired: each cookie was made before its file. There may
    be many files, so this is not done each time."""
    global _searched_at
    if time.monotonic() - _searched_at < SEARCH_INTERVAL:
        return
    _searched_at = time.monotonic()
    before = time.time() - settings.SESSION_COOKIE_AGE
    for entry in in_turns(os.scandir(directory)):
        # Another process may remove the same file. Directories are not the console's and stay.
        with suppress(FileNotFoundError):
            is_file = entry.is_file(follow_symlinks=False)
            if is_file and entry.stat(follow_symlinks=False).st_mtime < before:
                os.unlink(entry)


def _file(directory: Path, sign_in_id: str) -> Path:
    return directory / hashlib.sha256(sign_in_id.encode()).hexdigest()


def _files_of_key(directory: Path, secret: str) -> list[Path]:
    """Return the files of a key. A name is an HMAC with the console's secret, so that a process
    that lists the directory cannot test keys against it. The first has the present secret, the
    others were made before it was replaced."""
    return [
        directory
        / salted_hmac("perch ended key", secret, secret=key, algorithm="sha256").hexdigest()
        for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    ]
