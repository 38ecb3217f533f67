"""Finds the client's address behind a load balancer, which sends it before the first byte of the
connection by version 2 of the PROXY protocol
(https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt).

If the operator names load balancers, each connection from them must begin with such a header. A
header from any other address is refused, because anybody could claim any address by it
(`startup.packet_size`).
"""

import ipaddress
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network

from controlplane.address_ranges import parse_address
from controlplane.proxy.wire.channel import Channel
from controlplane.proxy.wire.errors import ProtocolViolation

Networks = Iterable[IPv4Network | IPv6Network]

# The beginning of a header, which no other protocol begins with.
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
# The beginning of a header of version 1, which resembles HTTP.
VERSION_1_PREFIX = b"PROXY "

# Signature, version with command, family with transport, length.
_HEADER_SIZE = 16
_VERSION = 2
# LOCAL is a connection of the load balancer's own, such as a health check.
_LOCAL, _FORWARDED = 0, 1
# By family and transport: the length of a client's address, and that of both addresses with ports.
_TCP = {0x11: (4, 12), 0x21: (16, 36)}


async def client_address(
    channel: Channel, peer: str, *, load_balancers: Networks, instead: bytes
) -> str | None:
    """Returns the client's address: from the peer's header if the peer is a load balancer, else the
    peer's own. Reads up to the header's end and no further. Returns None if the connection begins
    with the bytes `instead`, and reads those.

    Raises ProtocolViolation if a load balancer sends no header, or one without an address;
    ConnectionLost.
    """
    own = parse_address(peer)
    if not any(own in network for network in load_balancers):
        return peer
    # Only one byte at first: a peer that sends no header may wait for an answer to a few bytes.
    head = await channel.read(1)
    if instead.startswith(head):
        head += await channel.read(len(instead) - 1)
        if head == instead:
            return None
    elif SIGNATURE.startswith(head):
        head += await channel.read(_HEADER_SIZE - 1)
    if not head.startswith(SIGNATURE) or head[12] >> 4 != _VERSION:
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
