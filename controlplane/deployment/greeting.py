"""What `up` prints once the service runs: its addresses, and how to sign in; and one-time links
that sign a user in at this machine's console, as the account `local`.

A link contains a random code. The console finds what the code stands for in a file that is named
after the code's hash. Any process that can read this file could also read `api-key` beside it.
"""

import hashlib
import json
import logging
import os
import re
import secrets
import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlencode

from django.conf import settings

from controlplane.compute.host.accounts import Account, set_owner
from controlplane.compute.host.foreign_files import read_regular
from controlplane.compute.host.tree import NEW_FILE, open_directory
from controlplane.compute.pooler import pgbouncer, pooler_version
from controlplane.compute.settings.pooler_settings import KEEPS_PREPARED_STATEMENTS
from controlplane.process_accounts import console_dir, in_use

log = logging.getLogger(__name__)


def greeting(host: str, ports: Mapping[str, int]) -> str:
    key_file = settings.STATE_DIR / "api-key"
    console = f"http://{reachable(host)}:{ports['console']}"
    api = f"http://{reachable(host)}:{ports['api']}/api/v2"
    return f"""
Perch is up.

  Console  {console}
           {_how_to_sign_in(console)}sign in with the API key in {key_file}
  API      {api}, documented at {api}/docs
           In a shell: export PERCH_API={api} PERCH_API_KEY=$(cat {shlex.quote(str(key_file))})
  Postgres {reachable(host)}:{ports["proxy"]}, as the console shows for each endpoint
           {_trust(host, ports)}{_pooling()}{_metrics()}

Ctrl-C stops everything; the next `up` finds it as it was."""


def reachable(host: str) -> str:
    """An address at which the service can be reached from this host."""
    return "127.0.0.1" if host in ("0.0.0.0", "") else host  # noqa: S104 - compared, not bound


def _how_to_sign_in(console_url: str) -> str:
    """A sign-in link for the greeting; "" if none can be made, as `up` works on a full disk."""
    try:
        note_console_address(console_url)
        link = make_sign_in_link(console_url)
    except OSError as error:
        log.warning("no sign-in link", extra={"error": str(error)})
        return ""
    return (
        f"sign in, once and within 10 minutes: {link}\n"
        f"           (`{_command('sign_in_link')}` prints another link), or "
    )


def _command(name: str) -> str:
    """How to run the command for this service, in any shell."""
    return f"{settings.PROGRAM} {name} --state-dir {shlex.quote(str(settings.STATE_DIR))}"


def _trust(host: str, ports: Mapping[str, int]) -> str:
    if settings.TLS_CERTIFICATE:
        return f"with the certificate of {settings.TLS_CERTIFICATE}"
    url = f"http://{reachable(host)}:{ports['api']}/certificate-authority.pem"
    return f"sslmode=verify-full trusts {url}"


def _pooling() -> str:
    """Lines of the greeting about what pooled clients on this host cannot use."""
    program = pgbouncer()
    if program is None:
        return "\n  Pooling  none: PgBouncer is not installed (apt-get install pgbouncer)"
    version = pooler_version(program)
    if version >= KEEPS_PREPARED_STATEMENTS:
        return ""
    return (
        f"\n  Pooling  without prepared statements, which this PgBouncer {version[0]}.{version[1]} "
        f"does not keep;\n           `{_command('install_pgbouncer')}` builds one that does "
        "(docs/how-to/pooling.md)"
    )


def _metrics() -> str:
    """The line of the greeting with the address at which Prometheus gets the figures."""
    # The account of the process that writes it may have put something else in its place.
    place = settings.METRICS_DIR / "address" if in_use() else settings.METRICS_ADDRESS_FILE
    found = re.fullmatch("(http://\\S+)\n", read_regular(place, 200).decode(errors="replace"))
    return f"\n  Metrics  {found[1]}" if found else ""


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
        with open_directory(FOLDER, dir_fd=outer) as folder:
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
