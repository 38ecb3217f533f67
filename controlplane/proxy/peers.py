"""Several proxy processes behind one port. Each forwards cancel requests that belong to another.

The process that first accepts a connection serves it, so a cancel request may not arrive at the
process that runs its query. The process id in the cancel key identifies that process.
"""

import asyncio
import contextlib
import os
import stat
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from controlplane.proxy import compute, startup
from controlplane.proxy.compute import CancelKey
from controlplane.proxy.directory import ComputeAddress
from controlplane.proxy.errors import ProxyError
from controlplane.proxy.readiness import Readiness
from controlplane.proxy.shared_counts import SharedCounts

_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class PeerGroup:
    """This process's place among its peers."""

    # From 0 to `size` - 1.
    number: int
    size: int
    # See `own_directory`. A process that can reach a socket in it could guess cancel keys.
    directory: Path
    counts: SharedCounts

    def owner_of(self, pid: int) -> int:
        """Returns the number of the process that issued a cancel key with this process id."""
        return pid % self.size

    def own_pid(self, pid: int) -> int:
        """Returns a process id near this one whose owner is this process."""
        return pid - pid % self.size + self.number

    def socket(self, number: int) -> Path:
        return self.directory / f"proxy-{number}.sock"


def own_directory(path: Path) -> Path:
    """Creates a directory that only this account may enter. If the directory exists, checks that
    this account owns it, and sets its permissions. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise OSError(f"{path} is not a directory of this account")
    path.chmod(0o700)
    return path


class Peers:
    """Receives and sends forwarded cancel requests. `cancel` is called with each key that a peer
    sent here."""

    def __init__(
        self,
        group: PeerGroup,
        cancel: Callable[[CancelKey], Awaitable[None]],
        readiness: Readiness,
    ) -> None:
        self._group = group
        self._readiness = readiness
        self._cancel = cancel
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        path = self._group.socket(self._group.number)
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, path)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def is_ours(self, key: CancelKey) -> bool:
        return self._group.owner_of(key.pid) == self._group.number

    async def send_on(self, key: CancelKey) -> None:
        """Sends the cancel request to the peer that issued the key, and waits until it is done."""
        address = ComputeAddress(self._group.socket(self._group.owner_of(key.pid)))
        await compute.cancel(address, key, readiness=self._readiness)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ProxyError, asyncio.IncompleteReadError, TimeoutError, OSError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                head = await reader.readexactly(startup.HEAD_SIZE)
                rest = await reader.readexactly(startup.packet_size(head) - startup.HEAD_SIZE)
                request = startup.parse(head + rest)
                if isinstance(request, startup.CancelRequest):
                    await self._cancel(CancelKey(request.pid, request.secret))
        writer.close()
