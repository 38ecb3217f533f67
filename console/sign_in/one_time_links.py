"""One-time links to sign in with. `manage.py up` and `manage.py sign_in_link` make them on this
machine. Each is good for one sign-in within minutes.

A link holds a random code. The API key that it stands for is in a file named after the code's hash,
in the directory `links` of the console's state directory. An account that can write there could
read the key anyway. The request that succeeds in removing the file may sign in."""

import hashlib
import json
import os
import stat
import time
from pathlib import Path

from django.conf import settings

MAX_FILE_BYTES = 4096  # bytes


def key_of(code: str) -> str:
    """Return the API key that the link stands for; "" if it was used already or has expired."""
    return _read(_file(code))


def use_up(code: str) -> bool:
    """Use the link. Returns True for only one of several callers, and False if it was used."""
    try:
        _file(code).unlink()
    except OSError:
        return False
    return True


def _file(code: str) -> Path:
    return Path(settings.STATE_DIR) / "links" / hashlib.sha256(code.encode()).hexdigest()


def _read(file: Path) -> str:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as opened:
        found = os.fstat(descriptor)
        is_ours = found.st_uid == os.geteuid() and not found.st_mode & 0o077
        if not (stat.S_ISREG(found.st_mode) and is_ours):
            return ""
        content = opened.read(MAX_FILE_BYTES)
    try:
        data = json.loads(content)
        key, until = data["key"], data["until"]
    except (ValueError, TypeError, KeyError):
        return ""
    is_in_time = isinstance(until, int | float) and time.time() < until
    return key if is_in_time and isinstance(key, str) else ""
