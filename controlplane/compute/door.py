"""The socket by which clients come in to a compute. Before the compute is stopped it is moved to
where the platform alone looks for it (`session.parameters`).

So nobody need promise anything: a connection is made to a path in one step of the kernel's. Whoever
made one before the move is seen, however it goes on; whoever comes later, were it a proxy that has
stood still for an hour, finds nobody, and has sent nothing yet.

The directory is a stranger's: what is there instead of a socket keeps nobody from stopping.
"""

import os
from contextlib import suppress
from pathlib import Path

PORT, SHUT_PORT = 5432, 5433  # of the socket's names alone
SOCKET = f".s.PGSQL.{PORT}"
SHUT = f".s.PGSQL.{SHUT_PORT}"
# In /proc/net/unix: not accepted yet, and accepted.
_CONNECTED = (b"02", b"03")


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
            # Num RefCount Protocol Flags Type St Inode Path: of accepted ones, the listener's.
            parts = line.rstrip(b"\n").split(None, 7)
            if len(parts) == 8 and parts[5] in _CONNECTED and parts[7].endswith(name):
                found.append(Path(os.fsdecode(parts[7])).parent)
    return found
