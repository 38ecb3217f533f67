"""One-time links that sign a user in at this machine's console, as the account `local`.

A link contains a random code. The console finds what the code stands for in a file that is named
after the code's hash. Any process that can read this file could also read `api-key` beside it.
"""

import hashlib
import json
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlencode

from django.conf import settings

GOOD_FOR = 10 * 60  # seconds
# Keeps the console's address for links that are requested later.
ADDRESS_FILE = "console-address"


def note_console_address(url: str) -> None:
    (settings.STATE_DIR / ADDRESS_FILE).write_text(f"{url}\n")


def console_address() -> str:
    """The console's address, as `up` noted it. Raises FileNotFoundError if `up` never ran."""
    return str((settings.STATE_DIR / ADDRESS_FILE).read_text().strip())


def make_sign_in_link(console_url: str) -> str:
    """Make a new link. Raises OSError; FileNotFoundError if `up` has made no account yet."""
    key = (settings.STATE_DIR / "api-key").read_text().strip()
    folder = settings.STATE_DIR / "console" / "links"
    for directory in (folder.parent, folder):
        directory.mkdir(mode=0o700, exist_ok=True)
    _forget_old(folder)
    code = secrets.token_urlsafe(24)
    path = folder / hashlib.sha256(code.encode()).hexdigest()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump({"key": key, "until": time.time() + GOOD_FOR}, file)
    return f"{console_url.rstrip('/')}/sign-in/link?{urlencode({'code': code})}"


def _forget_old(folder: Path) -> None:
    for path in folder.iterdir():
        # The console may remove the file at the same time.
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < time.time() - GOOD_FOR:
                path.unlink()
