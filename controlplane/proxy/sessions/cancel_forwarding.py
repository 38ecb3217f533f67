"""Forwards cancel requests between the proxy processes behind one port. The process that first
accepts a connection serves it, so a cancel request may not arrive at the process that runs its
query. The process id in the cancel key identifies that process."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from controlplane.proxy.directory.interface import ComputeAddress
from controlplane.proxy.relaying import compute
from controlplane.proxy.relaying.compute import CancelKey
from controlplane.proxy.settings import Siblings
from controlplane.proxy.wire import startup
from controlplane.proxy.wire.errors import ProxyError
from controlplane.proxy.wire.readiness import Readiness

_FORWARD_TIMEOUT = 10.0


class CancelForwarder:
    """Receives and sends forwarded cancel requests. `cancel` is called with each key that a sibling
    sent here."""

    def __init__(
        self,
        siblings: Siblings,
        cancel: Callable[[CancelKey], Awaitable[None]],
        readiness: Readiness,
    ) -> None:
        self._siblings = siblings
        self._readiness = readiness
        self._cancel = cancel
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        path = self._siblings.socket(self._siblings.number)
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, path)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def is_ours(self, key: CancelKey) -> bool:
        return self._siblings.owner_of(key.pid) == self._siblings.number

    async def forward(self, key: CancelKey) -> None:
        """Sends the cancel request to the sibling that issued the key, and waits until it is
        done."""
        address = ComputeAddress(self._siblings.socket(self._siblings.owner_of(key.pid)))
        await compute.cancel(address, key, readiness=self._readiness)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ProxyError, asyncio.IncompleteReadError, TimeoutError, OSError):
            async with asyncio.timeout(_FORWARD_TIMEOUT):
                head = await reader.readexactly(startup.HEAD_SIZE)
                rest = await reader.readexactly(startup.packet_size(head) - startup.HEAD_SIZE)
                request = startup.parse(head + rest)
                if isinstance(request, startup.CancelRequest):
                    await self._cancel(CancelKey(request.pid, request.secret))
        writer.close()
