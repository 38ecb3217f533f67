"""Passes the connection of another host's `pg_receivewal` on to the compute whose log it
receives."""

import logging
import re
from typing import Protocol

from controlplane.compute.settings.configuration import PLATFORM_ROLE
from controlplane.proxy.directory.interface import Tally
from controlplane.proxy.peers.header import PassedOn
from controlplane.proxy.relaying.relay import Relay
from controlplane.proxy.sessions.context import ProxyContext
from controlplane.proxy.wire import messages, startup
from controlplane.proxy.wire.channel import Channel
from controlplane.proxy.wire.errors import ProtocolViolation

log = logging.getLogger(__name__)

# The only option that the other host needs: see `fleet.receivers.receivewal`.
_OPTIONS = re.compile(rb"(-c wal_sender_timeout=[0-9]{1,8})?")


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
    begin = _begin_log(request, passed_on.receiver)
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
        relay.start(to_client=b"", to_compute=begin + channel.take_ahead())
        await relay.done
    finally:
        relay.close()
    await proxy.directory.end_log_source(passed_on.receiver)


def _begin_log(request: startup.Request | None, receiver: str) -> bytes:
    """Returns the start-up packet for the compute. It is the platform's own connection there, so
    nothing in it is as the other host has sent it. Postgres lets a connection with these parameters
    execute no SQL. Raises ProtocolViolation."""
    given = request.parameters if isinstance(request, startup.StartupMessage) else {}
    options = given.get(b"options", b"")
    if given.get(b"replication") != b"true" or not _OPTIONS.fullmatch(options):
        raise ProtocolViolation("another host has asked for something else than the log")
    return messages.startup_message(
        {
            b"user": PLATFORM_ROLE.encode(),
            b"replication": b"true",
            b"application_name": receiver.encode(),
            b"options": options,
        }
    )
