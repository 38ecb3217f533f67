"""The listener socket of a compute or a pooler. Before the compute is stopped, its socket is
renamed to a name that only the platform uses (`session.parameters`): it is hidden.

Connecting to a path is one atomic step of the kernel, so this needs no agreement with the clients.
A connection made before the rename can be seen (`connections_to`), however slowly it goes on. A
later one, even by a proxy that stood still for an hour, fails before anything was sent.

The directory belongs to an untrusted account. So errors are ignored: whatever that account put in
the socket's place must not prevent a stop.
"""

import grp
import os
import re
import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from controlplane.compute.host.accounts import Account, set_owner
from controlplane.compute.host.tree import open_directory, open_file
from controlplane.process_accounts import MAY_CONNECT, acts_as_root, in_use

PORT, HIDDEN_PORT = 5432, 5433  # only part of the socket's name
SOCKET = f".s.PGSQL.{PORT}"
HIDDEN_SOCKET = f".s.PGSQL.{HIDDEN_PORT}"
# A line of /proc/net/unix for a connection that was or was not accepted yet: Num RefCount Protocol
# Flags Type St Inode Path; for an accepted one, Path is the listener's. The kernel writes paths
# unescaped, line breaks included, so any process can forge a line by naming a socket. A name has
# 108 bytes. A forged line needs the padded fields too, so at most 48 bytes are left for its path.
_CONNECTED = re.compile(
    rb"[0-9a-f]{16}: [0-9A-F]{8} [0-9A-F]{8} [0-9A-F]{8} [0-9A-F]{4} 0[23] [ 0-9]{4,}[0-9] (/.*)"
)


def sockets_mode() -> str:
    """The permissions of the sockets of computes and poolers, in octal. If the proxy has an account
    of its own, the directory alone decides who may connect (`give_sockets`)."""
    return "0777" if in_use() else "0700"


def give_sockets(socket_dir: Path, account: Account) -> None:
    """Make the account the owner of the directory in which it listens. If the proxy has an account
    of its own, its group may pass through. Raises OSError."""
    wanted = account
    if acts_as_root() and in_use():
        wanted = Account(account.uid, grp.getgrnam(MAY_CONNECT).gr_gid)
    with open_directory(socket_dir) as directory:
        set_owner(directory, wanted)
        os.fchmod(directory, 0o700 if wanted == account else 0o710)


def let_proxy_in(socket_dir: Path, files: Collection[str]) -> None:
    """Let the proxy's account connect to what listens in the directory already, and read the
    `files`, as far as they are the directory's owner's. Raises OSError."""
    owner = socket_dir.lstat().st_uid
    give_sockets(socket_dir, Account(owner, owner))
    with open_directory(socket_dir) as directory:
        for name in files:
            # The owner may have put a link in its place.
            with (
                suppress(FileNotFoundError),
                open_file(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=directory) as file,
            ):
                found = os.fstat(file)
                if found.st_uid == owner and found.st_nlink == 1:
                    if stat.S_ISSOCK(found.st_mode):
                        os.chmod(f"/proc/self/fd/{file}", 0o777)  # noqa: S103 - the directory protects it
                    elif stat.S_ISREG(found.st_mode):
                        os.chmod(f"/proc/self/fd/{file}", 0o644)


def hide(socket_dir: Path) -> None:
    """Rename the socket, so that only the platform can connect. The caller holds the branch's
    lock."""
    with suppress(OSError):
        (socket_dir / SOCKET).rename(socket_dir / HIDDEN_SOCKET)


def restore(socket_dir: Path) -> None:
    """Undo `hide`, if it was done. The caller holds the branch's lock."""
    # Never over the socket of a later run, beside which an earlier run's may have been left.
    if not os.path.lexists(socket_dir / SOCKET):
        with suppress(OSError):
            (socket_dir / HIDDEN_SOCKET).rename(socket_dir / SOCKET)


def port_of(socket_dir: Path) -> int:
    """The port in the name by which the platform finds the socket now."""
    if os.path.lexists(socket_dir / SOCKET) or not os.path.lexists(socket_dir / HIDDEN_SOCKET):
        return PORT
    return HIDDEN_PORT


def connections_to(socket_name: str) -> list[Path]:
    """The directories of sockets with this name, one entry per connection that was made to it on
    this host. Renamed sockets count, and so do connections that the server has not accepted."""
    name = os.fsencode(f"/{socket_name}")
    found = []
    # Read as bytes: other accounts' sockets are listed too, and may have any name.
    with open("/proc/net/unix", "rb") as file:
        for line in file:
            made = _CONNECTED.fullmatch(line.rstrip(b"\n")) if name in line else None
            if made and made[1].endswith(name):
                found.append(Path(os.fsdecode(made[1])).parent)
    return found
