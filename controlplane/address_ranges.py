"""Ranges of addresses. Any layer may import this module.

Clients may connect from ranges that callers choose: `192.0.2.7`, `192.0.2.0/24`, `2001:db8::/32`,
or the first and the last address as `192.0.2.1-192.0.2.10`. The API parses them, and the proxy
decides by them.

Webhooks and computes reach only public addresses, not what only Perch's host can reach: the host's
own services, its network and the cloud provider's metadata service. The tables of these are Perch's
own, because Python's definition of a private address differs between its versions.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_HINT = (
    'use an address, a CIDR range such as "192.0.2.0/24", or two addresses such as '
    '"192.0.2.1-192.0.2.9"'
)
# Characters of a range: two IPv6 addresses have up to 90, and may have spaces around them.
MAX_RANGE_LENGTH = 200
_MAPPED = IPv6Network("::ffff:0:0/96")


@dataclass(frozen=True, slots=True)
class AddressRange:
    first: Address
    last: Address

    def __contains__(self, address: Address) -> bool:
        return address.version == self.first.version and self.first <= address <= self.last  # type: ignore[operator]


def parse_range(text: str) -> AddressRange:
    """Mapped addresses become IPv4. Raises ValueError with a message for whoever wrote `text`."""
    if len(text) > MAX_RANGE_LENGTH:
        raise ValueError(f"a text of {len(text):,} characters is not a range of addresses: {_HINT}")
    first, dash, last = (part.strip() for part in text.partition("-"))
    try:
        if "%" in text:
            raise ValueError("a zone")
        if dash:
            found = AddressRange(parse_address(first), parse_address(last))
        else:
            # Ignore bits beyond the prefix, as firewalls do.
            network = ipaddress.ip_network(first, strict=False)
            if network.version == 6 and network.subnet_of(_MAPPED):
                network = IPv4Network((network[0].packed[-4:], network.prefixlen - 96))
            found = AddressRange(network[0], network[-1])
    except ValueError:
        raise ValueError(f'"{text}" is not a range of addresses: {_HINT}') from None
    if found.last not in found:
        raise ValueError(f'"{text}" is not a range of addresses: it ends before it begins')
    return found


# The address of one connection is parsed several times.
@lru_cache(maxsize=4096)
def parse_address(text: str) -> Address:
    """Parse a client's address. An IPv4 address that is written as IPv6 (`::ffff:192.0.2.7`)
    becomes IPv4. Raises ValueError."""
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


@lru_cache(maxsize=4096)
def network_of(text: str) -> str:
    """The part of the network that one client usually has, by which clients are counted: the IPv4
    address, or the /64 of an IPv6 address. What is no address is returned unchanged."""
    try:
        found = parse_address(text)
    except ValueError:
        return text
    is_6 = isinstance(found, ipaddress.IPv6Address)
    return str(ipaddress.ip_network((found, 64), strict=False) if is_6 else found)


@lru_cache(maxsize=4096)
def is_loopback(text: str) -> bool:
    """Whether a client's address is a loopback address. Raises ValueError."""
    return parse_address(text).is_loopback


def is_within(address: Address, ranges: Iterable[AddressRange]) -> bool:
    return any(address in one for one in ranges)


# IANA's special-purpose registry, and other networks that are not public.
NOT_PUBLIC_4 = [
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared address space (carrier-grade NAT)
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's host services, though formally a public address
        "169.254.0.0/16",  # link-local, including clouds' metadata services
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relay anycast
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, including broadcast
    )
]
# IANA assigns public addresses only from this network. Loopback, link-local, unique local,
# site-local and multicast addresses lie outside of it.
PUBLIC_6 = IPv6Network("2000::/3")
NOT_PUBLIC_6 = [
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, including Teredo
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which embeds an IPv4 address
        "3fff::/20",  # documentation
    )
]
