"""Passes the connection of another host's `pg_receivewal` on to the compute whose log it
receives."""

import logging
from typing import Protocol

from controlplane.proxy.directory.interface import Tally
from controlplane.proxy.peers.header import PassedOn
from controlplane.proxy.relaying.relay import Relay
from controlplane.proxy.sessions.context import ProxyContext
from controlplane.proxy.wire import startup
from controlplane.proxy.wire.channel import Channel
from controlplane.proxy.wire.errors import ProtocolViolation

log = logging.getLogger(__name__)


class ReceivingHost(Protocol):
    """See `session.Session`."""

    passed_on: PassedOn | None

    @property
    def channel(self) -> Channel: ...


async def send_log(proxy: ProxyContext, client: ReceivingHost) -> None:
    """Passes bytes both ways until one side ends. Raises ProtocolViolation, ConnectionLost."""
    assert client.passed_on is not None
    channel, passed_on = client.channel, client.passed_on
    request = await startup.read_request(channel, proxy.identity)
    # Postgres lets such a connection execute no SQL.
    if not isinstance(request, startup.StartupMessage) or (
        request.parameters.get(b"replication") != b"true"
    ):
        raise ProtocolViolation("another host has asked for something else than the log")
    fields = {"receiver": passed_on.receiver, "host": passed_on.from_host}
    connection = await proxy.directory.open_log_source(passed_on.receiver, passed_on.from_host)
    if connection is None:
        log.warning("no log for this receiver", extra=fields)
        return
    connection.setblocking(False)
    compute = Channel(connection, proxy.readiness)
    relay = Relay(channel, compute, readiness=proxy.readiness, sent=Tally(), received=Tally())
    log.info("log sent to another host", extra=fields)
    try:
        relay.start(to_client=b"", to_compute=request.packet + channel.take_ahead())
        await relay.done
    finally:
        relay.close()
    await proxy.directory.end_log_source(passed_on.receiver)
