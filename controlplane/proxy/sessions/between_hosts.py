"""Connections of another host that are no client's. That of its worker, which moves a project here,
goes to this host's worker, and that of its `pg_receivewal` to the compute whose log it receives."""

import logging
import re
import socket
from typing import TYPE_CHECKING

from controlplane.compute.settings.configuration import PLATFORM_ROLE
from controlplane.proxy.directory.interface import Tally
from controlplane.proxy.relaying.relay import Relay
from controlplane.proxy.wire import messages, startup
from controlplane.proxy.wire.channel import Channel
from controlplane.proxy.wire.errors import ProtocolViolation

if TYPE_CHECKING:
    from controlplane.proxy.sessions.session import Session

log = logging.getLogger(__name__)

# The only option that the other host needs: see `fleet.receivers.receivewal`.
_OPTIONS = re.compile(rb"(-c wal_sender_timeout=[0-9]{1,8})?")


async def pass_to_worker(client: "Session") -> None:
    """Passes bytes both ways until one side ends. The worker first gets a line with the name of the
    other host, which its certificate has proved."""
    assert client.passed_on is not None
    host = client.passed_on.from_host
    connection = await client.proxy.directory.open_receiver()
    if connection is None:
        return
    log.info("move begun", extra={"host": host})
    await _relay(client, connection, f"{host}\n".encode())


async def send_log(client: "Session") -> None:
    """Passes bytes both ways until one side ends. Raises ProtocolViolation, ConnectionLost."""
    assert client.passed_on is not None
    directory, passed_on = client.proxy.directory, client.passed_on
    request = await startup.read_request(client.channel, client.proxy.identity)
    begin = _begin_log(request, passed_on.receiver)
    fields = {"receiver": passed_on.receiver, "host": passed_on.from_host}
    connection = await directory.open_log_source(passed_on.receiver, passed_on.from_host)
    if connection is None:
        log.warning("no log for this receiver", extra=fields)
        return
    log.info("log sent to another host", extra=fields)
    await _relay(client, connection, begin)
    await directory.end_log_source(passed_on.receiver)


async def _relay(client: "Session", connection: socket.socket, begin: bytes) -> None:
    """Sends `begin` to the connection, then relays until one side ends."""
    channel, readiness = client.channel, client.proxy.readiness
    served = Channel(connection, readiness)
    relay = Relay(channel, served, readiness=readiness, sent=Tally(), received=Tally())
    try:
        relay.start(to_client=b"", to_compute=begin + channel.take_ahead())
        await relay.done
    finally:
        relay.close()


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
