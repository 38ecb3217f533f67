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
from urllib.parse import urlencode

from django.conf import settings

from controlplane.compute.host.accounts import Account, set_owner
from controlplane.compute.host.tree import NEW_FILE, open_directory
from controlplane.process_accounts import console_dir

LINK_TTL = 10 * 60  # seconds
# In the console's state directory.
FOLDER = "links"
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
    console = console_dir(settings.STATE_DIR)
    console.mkdir(mode=0o700, exist_ok=True)
    code = secrets.token_urlsafe(24)
    # The console may have an account of its own, which owns these directories: it must be able to
    # read and remove what is made here, and could have put a link in the second one's place.
    with open_directory(console) as outer:
        with suppress(FileExistsError):
            os.mkdir(FOLDER, 0o700, dir_fd=outer)
        with open_directory(FOLDER, within=outer) as folder:
            owner = os.fstat(outer)
            set_owner(folder, Account(owner.st_uid, owner.st_gid))
            _forget_old(folder)
            name = hashlib.sha256(code.encode()).hexdigest()
            with os.fdopen(os.open(name, NEW_FILE, 0o600, dir_fd=folder), "w") as file:
                set_owner(file.fileno(), Account(owner.st_uid, owner.st_gid))
                json.dump({"key": key, "until": time.time() + LINK_TTL}, file)
    return f"{console_url.rstrip('/')}/sign-in/link?{urlencode({'code': code})}"


def _forget_old(folder: int) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            # The console may remove the file at the same time.
            with suppress(FileNotFoundError):
                if entry.stat(follow_symlinks=False).st_mtime < time.time() - LINK_TTL:
                    os.unlink(entry.name, dir_fd=folder)
