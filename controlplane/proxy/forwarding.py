"""Behind a load balancer: whose connection it passes on, as it says in front of the first byte by
version 2 of the PROXY protocol (https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt).

Where the operator names load balancers, each connection of theirs must begin with such a header.
One from anywhere else is refused, as anybody could claim to be anybody (`startup.packet_size`).
"""

import ipaddress
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network

from controlplane.address_ranges import parse_address
from controlplane.proxy.channel import Channel
from controlplane.proxy.errors import ProtocolViolation
from controlplane.proxy.startup import PROXY_SIGNATURE

Networks = Iterable[IPv4Network | IPv6Network]

# The signature, the version with the command, the family with the transport, a length.
_HEADER_SIZE = 16
_VERSION = 2
# Of the load balancer's own, as its health checks are.
_LOCAL, _FORWARDED = 0, 1
# By family and transport: how long a client's address is, and both ends' with their ports.
_TCP = {0x11: (4, 12), 0x21: (16, 36)}


async def client_address(channel: Channel, peer: str, *, load_balancers: Networks) -> str:
    """The address that the connection comes from: what the peer's header says where the peer is one
    of the load balancers, else the peer's own. Reads up to the header's end, and no further.

    Raises ProtocolViolation for a load balancer that says nothing, or nothing of an address;
    ConnectionLost.
    """
    own = parse_address(peer)
    if not any(own in network for network in load_balancers):
        return peer
    # One byte first: whoever sends no header may wait for an answer before it sends more.
    head = await channel.read(1)
    if PROXY_SIGNATURE.startswith(head):
        head += await channel.read(_HEADER_SIZE - 1)
    if not head.startswith(PROXY_SIGNATURE) or head[12] >> 4 != _VERSION:
        raise ProtocolViolation(
            f"connections from {peer} must begin with a header of the PROXY protocol, version 2"
        )
    rest = await channel.read(int.from_bytes(head[14:], "big"))
    command = head[12] & 0x0F
    if command == _LOCAL:
        return peer
    size, both_ends = _TCP.get(head[13], (0, 0))
    if command != _FORWARDED or not size or len(rest) < both_ends:
        # The protocol lets us take the load balancer's address for the client's; but then its
        # clients could do whatever the load balancer may.
        raise ProtocolViolation(
            f"the PROXY protocol's header from {peer} names no address of a TCP client"
        )
    return str(parse_address(str(ipaddress.ip_address(rest[:size]))))
