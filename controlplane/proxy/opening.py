"""Reads the opening of a connection up to its request, with TLS if the client wants it."""

from controlplane.proxy import startup
from controlplane.proxy.channel import Channel
from controlplane.proxy.errors import ForwardingRefused, ProtocolViolation
from controlplane.proxy.tls import ALPN_HTTP, TlsIdentity


async def speaks_http(channel: Channel, identity: TlsIdentity) -> bool:
    """Returns True if the client speaks HTTP. Performs the TLS handshake first if the client begins
    with one.

    Raises ProtocolViolation, ConnectionLost.
    """
    first = await channel.peek()
    if first != startup.TLS_HANDSHAKE_BYTE:
        if first == startup.PROXY_LINE[:1]:
            await _refuse_proxy_line(channel)
        return startup.begins_http(first)
    tls = await channel.start_tls(identity.context)
    agreed = tls.selected_alpn_protocol()
    if agreed is not None:
        return agreed == ALPN_HTTP
    if not startup.begins_http(await channel.peek()):
        raise ProtocolViolation(
            "received direct SSL connection request without ALPN protocol negotiation extension"
        )
    return True


async def _refuse_proxy_line(channel: Channel) -> None:
    """Raises ForwardingRefused if the client begins with a PROXY protocol header of version 1. The
    Postgres client behind it expects an answer that it can read, which HTTP's would not be."""
    ahead = await channel.look_ahead()
    while len(ahead) < len(startup.PROXY_LINE) and startup.PROXY_LINE.startswith(ahead):
        await channel.read_ahead()
        ahead = await channel.look_ahead()
    if ahead.startswith(startup.PROXY_LINE):
        raise ForwardingRefused


async def read_request(
    channel: Channel, identity: TlsIdentity, *, offers_tls: bool
) -> startup.CancelRequest | startup.StartupMessage:
    """Reads up to the start-up message or cancel request, and agrees on TLS before it if the client
    asks for that.

    Raises ProtocolViolation, ConnectionLost.
    """
    gss_refused = False
    while True:
        head = await channel.read(startup.HEAD_SIZE)
        rest = await channel.read(startup.packet_size(head) - startup.HEAD_SIZE)
        packet = startup.parse(head + rest)
        if not isinstance(packet, startup.EncryptionRequest):
            return packet
        if channel.tls is not None or (gss_refused and not packet.tls):
            raise ProtocolViolation("received unexpected encryption request")
        if packet.tls and offers_tls:
            await channel.write(b"S")
            await channel.start_tls(identity.context)
        else:
            gss_refused = True
            await channel.write(b"N")
