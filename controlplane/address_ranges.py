"""Ranges of addresses that clients may connect from: `192.0.2.7`, `192.0.2.0/24`, `2001:db8::/32`,
or the first and the last address as `192.0.2.1-192.0.2.10`.

Any layer may import this module: the API parses callers' input with it, and the proxy decides with
it which clients may connect.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_HINT = (
    'use an address, a CIDR range such as "192.0.2.0/24", or two addresses such as '
    '"192.0.2.1-192.0.2.9"'
)


@dataclass(frozen=True, slots=True)
class AddressRange:
    first: Address
    last: Address

    def __contains__(self, address: Address) -> bool:
        return address.version == self.first.version and self.first <= address <= self.last  # type: ignore[operator]


def parse_range(text: str) -> AddressRange:
    """Raises ValueError with a message for the user who wrote `text`."""
    first, dash, last = (part.strip() for part in text.partition("-"))
    try:
        if dash:
            found = AddressRange(ipaddress.ip_address(first), ipaddress.ip_address(last))
        else:
            # Ignore bits beyond the prefix, as firewalls do.
            network = ipaddress.ip_network(first, strict=False)
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
def is_loopback(text: str) -> bool:
    """Whether a client's address is a loopback address. Raises ValueError."""
    return parse_address(text).is_loopback


def is_within(address: Address, ranges: Iterable[AddressRange]) -> bool:
    return any(address in one for one in ranges)
