"""The socket by which clients come in to a compute. Before the compute is stopped it is moved to
where the platform alone looks for it (`session.parameters`).

So nobody need promise anything: a connection is made to a path in one step of the kernel's. Whoever
made one before the move is seen, however it goes on; whoever comes later, were it a proxy that has
stood still for an hour, finds nobody, and has sent nothing yet.

The directory is a stranger's: what is there instead of a socket keeps nobody from stopping.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

PORT, SHUT_PORT = 5432, 5433  # of the socket's names alone
SOCKET = f".s.PGSQL.{PORT}"
SHUT = f".s.PGSQL.{SHUT_PORT}"
# A line of /proc/net/unix, of a connection that was not accepted yet, or was: Num RefCount Protocol
# Flags Type St Inode Path; of accepted ones the listener's path. The kernel writes paths as they
# are, with line breaks, so anybody can write a line by the name of a socket. A name has 108 bytes,
# of which at most 48 are left for a path behind what the kernel fills up to its width.
_CONNECTED = re.compile(
    rb"[0-9a-f]{16}: [0-9A-F]{8} [0-9A-F]{8} [0-9A-F]{8} [0-9A-F]{4} 0[23] [ 0-9]{4,}[0-9] (/.*)"
)


def shut(socket_dir: Path) -> None:
    """Let nobody in any more but the platform. The caller holds the branch's lock."""
    with suppress(OSError):
        (socket_dir / SOCKET).rename(socket_dir / SHUT)


def open_again(socket_dir: Path) -> None:
    """Take back `shut`, where it was done. The caller holds the branch's lock."""
    # Not over the socket of a later run, beside which an earlier one's may have been left.
    if not os.path.lexists(socket_dir / SOCKET):
        with suppress(OSError):
            (socket_dir / SHUT).rename(socket_dir / SOCKET)


def port_of(socket_dir: Path) -> int:
    """Of the name by which the platform finds the socket now."""
    if os.path.lexists(socket_dir / SOCKET) or not os.path.lexists(socket_dir / SHUT):
        return PORT
    return SHUT_PORT


def connections_to(socket_name: str) -> list[Path]:
    """The directory of the socket of that name, once for each connection of this host's that was
    made to it: wherever the socket is by now, and however far its server has got with it."""
    name = os.fsencode(f"/{socket_name}")
    found = []
    # Bytes: strangers' sockets are among them, of any name.
    with open("/proc/net/unix", "rb") as file:
        for line in file:
            made = _CONNECTED.fullmatch(line.rstrip(b"\n")) if name in line else None
            if made and made[1].endswith(name):
                found.append(Path(os.fsdecode(made[1])).parent)
    return found
