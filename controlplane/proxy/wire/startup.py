"""Reads the first packets of a connection, with TLS if the client wants it: encryption requests,
and then a cancel request or a start-up message. Before its first byte, a load balancer may send the
client's address by version 2 of the PROXY protocol
(https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt).

If the operator names load balancers, each connection from them must begin with such a header. A
header from any other address is refused, because anybody could claim any address by it.
"""

import ipaddress
import struct
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network

from controlplane.address_ranges import parse_address
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.channel import Channel, closed_on_failure
from controlplane.proxy.wire.errors import ForwardingRefused, ProtocolViolation, UnsupportedProtocol
from controlplane.proxy.wire.tls import ALPN_HTTP, TlsIdentity

# Postgres's own limit on a start-up packet, in bytes.
MAX_PACKET_BYTES = 10_000
# The size of a packet's length and code, which are the whole of an SSLRequest.
HEAD_SIZE = 8
# The type of a TLS handshake record. As the first byte of a start-up packet it would make the
# packet's length far larger than MAX_PACKET_BYTES.
TLS_HANDSHAKE_BYTE = b"\x16"

_SSL_REQUEST_CODE = 80877103
_GSS_REQUEST_CODE = 80877104
# Perch's own. Postgres's codes have the same first half, which is no version of the protocol.
_PEER_REQUEST_CODE = (1234 << 16) | 7372
# What another host's proxy sends first: see the package `peers`. A TLS handshake follows at once.
PEER_REQUEST = struct.pack("!II", HEAD_SIZE, _PEER_REQUEST_CODE)
_MAX_CANCEL_KEY_BYTES = 256

# The beginning of a PROXY protocol header, which no other protocol begins with.
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
# The beginning of a header of version 1, which resembles HTTP.
_VERSION_1_PREFIX = b"PROXY "
# Signature, version with command, family with transport, length.
_PROXY_HEADER_SIZE = 16
_PROXY_VERSION = 2
# LOCAL is a connection of the load balancer's own, such as a health check.
_LOCAL, _FORWARDED = 0, 1
# By family and transport: the length of a client's address, and that of both addresses with ports.
_TCP = {0x11: (4, 12), 0x21: (16, 36)}


@dataclass(frozen=True, slots=True)
class EncryptionRequest:
    """The client asks whether the connection can be encrypted, by TLS or by GSSAPI."""

    tls: bool


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """The proxy of another host connects."""


@dataclass(frozen=True, slots=True)
class CancelKey:
    """A key that cancels the running query of one connection; it is sent on another connection, as
    the whole of a cancel request."""

    pid: int
    secret: bytes


@dataclass(frozen=True, slots=True)
class StartupMessage:
    role: str
    # As sent, without protocol options (`_pq_.`).
    parameters: dict[bytes, bytes]
    # The newest protocol version that both sides speak.
    protocol: int
    # The NegotiateProtocolVersion for a client that asked for more than is supported, or b"".
    negotiation: bytes = field(default=b"")
    # The whole packet, as it was sent.
    packet: bytes = field(default=b"", repr=False, compare=False)


Request = CancelKey | StartupMessage
# Called when the client is about to begin a TLS handshake. Returns True if it has been served.
BeforeTls = Callable[[], Awaitable[bool]]
StartupPacket = EncryptionRequest | PeerRequest | Request


def begins_http(first: bytes) -> bool:
    """True if the byte begins an HTTP request's method. As the first byte of a start-up packet, a
    capital letter would make the packet's length far larger than MAX_PACKET_BYTES."""
    return b"A" <= first <= b"Z"


def packet_size(head: bytes) -> int:
    """Returns the size in bytes that the packet's first eight bytes announce.

    Raises ProtocolViolation if it is smaller or larger than any start-up packet, ForwardingRefused
    if the bytes begin a PROXY protocol header.
    """
    if SIGNATURE.startswith(head[:HEAD_SIZE]):
        raise ForwardingRefused
    size = int.from_bytes(head[:4], "big")
    if not HEAD_SIZE <= size <= MAX_PACKET_BYTES:
        raise ProtocolViolation("invalid length of startup packet")
    return size


def parse(packet: bytes) -> StartupPacket:
    """Parses one whole packet, whose first four bytes are its length.

    Raises ProtocolViolation if it is malformed, UnsupportedProtocol for another major version.
    """
    code = int.from_bytes(packet[4:8], "big")
    if code in (_SSL_REQUEST_CODE, _GSS_REQUEST_CODE):
        if len(packet) != HEAD_SIZE:
            raise ProtocolViolation("invalid length of startup packet")
        return EncryptionRequest(tls=code == _SSL_REQUEST_CODE)
    if packet == PEER_REQUEST:
        return PeerRequest()
    if code == messages.CANCEL_REQUEST_CODE:
        return _parse_cancel_request(packet)
    major, minor = struct.unpack_from("!HH", packet, 4)
    if major != 3:
        raise UnsupportedProtocol(major, minor)
    return _parse_startup_message(packet, code)


def _parse_cancel_request(packet: bytes) -> CancelKey:
    if not 13 <= len(packet) <= 12 + _MAX_CANCEL_KEY_BYTES:
        raise ProtocolViolation("invalid length of cancel request")
    return CancelKey(pid=int.from_bytes(packet[8:12], "big"), secret=packet[12:])


def _parse_startup_message(packet: bytes, version: int) -> StartupMessage:
    # The body is "name\0value\0…\0", so its last two parts are empty.
    parts = packet[HEAD_SIZE:].split(b"\0")
    if len(parts) < 2 or parts[-1] or parts[-2] or len(parts) % 2:
        raise ProtocolViolation("invalid startup packet layout: expected terminator as last byte")
    names, values = parts[:-2:2], parts[1:-2:2]
    if not all(names):
        raise ProtocolViolation("invalid startup packet layout: expected terminator as last byte")

    parameters = dict(zip(names, values, strict=True))
    if len(parameters) < len(names):
        # Of some, such as `replication`, Postgres combines all values.
        raise ProtocolViolation("a parameter is repeated in the startup packet")
    unknown = [name for name in parameters if name.startswith(b"_pq_.")]
    for name in unknown:
        del parameters[name]
    try:
        role = parameters.get(b"user", b"").decode()
    except UnicodeDecodeError:
        raise ProtocolViolation("the user name in the startup packet is not UTF-8") from None
    if not role:
        raise ProtocolViolation("no PostgreSQL user name specified in startup packet")

    protocol = min(version, messages.PROTOCOL_3_2)
    must_negotiate = protocol != version or unknown
    return StartupMessage(
        role=role,
        parameters=parameters,
        protocol=protocol,
        negotiation=messages.negotiate_protocol_version(protocol, unknown)
        if must_negotiate
        else b"",
        packet=packet,
    )


async def speaks_http(channel: Channel, identity: TlsIdentity) -> bool:
    """Returns True if the client speaks HTTP. Performs the TLS handshake first if the client begins
    with one.

    Raises ProtocolViolation, ConnectionLost.
    """
    first = await channel.peek()
    if first != TLS_HANDSHAKE_BYTE:
        if first == _VERSION_1_PREFIX[:1]:
            await _refuse_proxy_line(channel)
        return begins_http(first)
    tls = await channel.start_tls(identity.context)
    agreed = tls.selected_alpn_protocol()
    if agreed is not None:
        return agreed == ALPN_HTTP
    if not begins_http(await channel.peek()):
        raise ProtocolViolation(
            "received direct SSL connection request without ALPN protocol negotiation extension"
        )
    return True


async def _refuse_proxy_line(channel: Channel) -> None:
    """Raises ForwardingRefused if the client begins with a PROXY protocol header of version 1. The
    Postgres client behind it expects an answer that it can read, which HTTP's would not be."""
    ahead = await channel.look_ahead()
    while len(ahead) < len(_VERSION_1_PREFIX) and _VERSION_1_PREFIX.startswith(ahead):
        await channel.read_ahead()
        ahead = await channel.look_ahead()
    if ahead.startswith(_VERSION_1_PREFIX):
        raise ForwardingRefused


async def read_first_request(
    channel: Channel, identity: TlsIdentity, before_tls: BeforeTls
) -> Request | PeerRequest | None:
    """Reads as `read_request` does, on a connection whose first packet may be another host's
    PeerRequest. Raises ProtocolViolation, ConnectionLost."""
    packet = await _read_packet(channel)
    if isinstance(packet, PeerRequest) and channel.tls is None:
        return packet
    return await read_request(channel, identity, before_tls=before_tls, first=packet)


async def read_request(
    channel: Channel,
    identity: TlsIdentity,
    *,
    before_tls: BeforeTls | None = None,
    first: StartupPacket | None = None,
) -> Request | None:
    """Reads up to the start-up message or cancel request, and agrees on TLS before it if the client
    asks for that and `before_tls` is given. `first` is a packet that has been read already. Returns
    None if `before_tls` has served the client.

    Raises ProtocolViolation, ConnectionLost.
    """
    refused: set[bool] = set()
    while True:
        packet = first or await _read_packet(channel)
        first = None
        if isinstance(packet, PeerRequest):
            raise ProtocolViolation("received unexpected request of another host")
        if not isinstance(packet, EncryptionRequest):
            return packet
        if channel.tls is not None or packet.tls in refused:
            raise ProtocolViolation("received unexpected encryption request")
        if packet.tls and before_tls is not None:
            await channel.write(b"S")
            # The client expects a handshake, so no message could be read.
            with closed_on_failure(channel):
                if await before_tls():
                    return None
            await channel.start_tls(identity.context)
        else:
            refused.add(packet.tls)
            await channel.write(b"N")


async def _read_packet(channel: Channel) -> StartupPacket:
    head = await channel.read(HEAD_SIZE)
    return parse(head + await channel.read(packet_size(head) - HEAD_SIZE))


async def client_address(
    channel: Channel, peer: str, *, load_balancers: Iterable[IPv4Network | IPv6Network]
) -> str | None:
    """Returns the client's address: from the peer's header if the peer is a load balancer, else the
    peer's own. Reads up to the header's end and no further. Returns None if the connection begins
    with another host's PEER_REQUEST, and reads that.

    Raises ProtocolViolation if a load balancer sends no header, or one without an address;
    ConnectionLost.
    """
    own = parse_address(peer)
    if not any(own in network for network in load_balancers):
        return peer
    # Only one byte at first: a peer that sends no header may wait for an answer to a few bytes.
    head = await channel.read(1)
    if PEER_REQUEST.startswith(head):
        head += await channel.read(len(PEER_REQUEST) - 1)
        if head == PEER_REQUEST:
            return None
    elif SIGNATURE.startswith(head):
        head += await channel.read(_PROXY_HEADER_SIZE - 1)
    if not head.startswith(SIGNATURE) or head[12] >> 4 != _PROXY_VERSION:
        raise ProtocolViolation(
            f"connections from {peer} must begin with a PROXY protocol header, version 2"
        )
    rest = await channel.read(int.from_bytes(head[14:], "big"))
    command = head[12] & 0x0F
    if command == _LOCAL:
        return peer
    size, both_ends = _TCP.get(head[13], (0, 0))
    if command != _FORWARDED or not size or len(rest) < both_ends:
        # The protocol permits us to use the load balancer's address instead. But then its clients
        # would have the load balancer's access.
        raise ProtocolViolation(
            f"the PROXY protocol header from {peer} contains no address of a TCP client"
        )
    return str(parse_address(str(ipaddress.ip_address(rest[:size]))))
