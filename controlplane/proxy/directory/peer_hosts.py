"""The other hosts of the region, as the proxy last read them from the rows."""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from controlplane.models.connecting import ServedHost, find_peers
from controlplane.proxy.directory.control_database import ControlDatabase
from controlplane.proxy.directory.interface import PeerHost
from controlplane.proxy.wire.errors import ControlPlaneUnavailable

log = logging.getLogger(__name__)

# Seconds between two reads, and the least between two reads that somebody asked for.
_READ_INTERVAL = 10.0
_MIN_READ_INTERVAL = 0.5


class PeerHosts:
    """Must be used within one event loop."""

    def __init__(self, database: ControlDatabase, served: ServedHost) -> None:
        self._database = database
        self._served = served
        self._loop = asyncio.get_running_loop()
        self._read_at = 0.0
        self._reading = asyncio.Lock()
        self.known: Mapping[str, PeerHost] = MappingProxyType({})

    async def run(self) -> None:
        """Reads them again and again until cancelled."""
        while True:
            await self.read()
            await asyncio.sleep(_READ_INTERVAL)

    async def read(self) -> None:
        """See `Directory.read_peers`."""
        async with self._reading:
            if self._read_at and self._loop.time() - self._read_at < _MIN_READ_INTERVAL:
                return
            self._read_at = self._loop.time()
            try:
                rows = await self._database.ask(partial(find_peers, served=self._served))
            except ControlPlaneUnavailable as error:
                log.warning("cannot read the region's hosts", extra={"error": str(error)})
                return
        found = {
            row.id: PeerHost(row.id, row.peer_address, row.peer_port, row.peer_certificate)
            for row in rows
        }
        if found != self.known:
            self.known = MappingProxyType(found)
