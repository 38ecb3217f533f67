"""Passes the connection of another host's worker, which moves a project here, on to this host's
worker."""

import logging
from typing import Protocol

from controlplane.proxy.directory.interface import Tally
from controlplane.proxy.peers.header import PassedOn
from controlplane.proxy.relaying.relay import Relay
from controlplane.proxy.sessions.context import ProxyContext
from controlplane.proxy.wire.channel import Channel

log = logging.getLogger(__name__)


class MovingHost(Protocol):
    """See `session.Session`."""

    passed_on: PassedOn | None

    @property
    def channel(self) -> Channel: ...


async def pass_to_worker(proxy: ProxyContext, client: MovingHost) -> None:
    """Passes bytes both ways until one side ends. The worker first gets a line with the name of the
    other host, which its certificate has proved."""
    assert client.passed_on is not None
    host = client.passed_on.from_host
    connection = await proxy.directory.open_receiver()
    if connection is None:
        return
    connection.setblocking(False)
    worker = Channel(connection, proxy.readiness)
    relay = Relay(client.channel, worker, readiness=proxy.readiness, sent=Tally(), received=Tally())
    log.info("move begun", extra={"host": host})
    try:
        ahead = f"{host}\n".encode() + client.channel.take_ahead()
        relay.start(to_client=b"", to_compute=ahead)
        await relay.done
    finally:
        relay.close()
