"""Ranges of addresses that clients may come from: `192.0.2.7`, `192.0.2.0/24`, `2001:db8::/32`, or
the first and the last as `192.0.2.1-192.0.2.10`.

Beside the floors: the API reads what callers send by it, the proxy whom it lets in.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_HINT = 'give an address, a CIDR range as "192.0.2.0/24", or two addresses as "192.0.2.1-192.0.2.9"'


@dataclass(frozen=True, slots=True)
class AddressRange:
    first: Address
    last: Address

    def __contains__(self, address: Address) -> bool:
        return address.version == self.first.version and self.first <= address <= self.last  # type: ignore[operator]


def parse_range(text: str) -> AddressRange:
    """Raises ValueError, with words for whoever wrote it."""
    first, dash, last = (part.strip() for part in text.partition("-"))
    try:
        if dash:
            found = AddressRange(ipaddress.ip_address(first), ipaddress.ip_address(last))
        else:
            # Bits beyond the prefix are let go, as firewalls do.
            network = ipaddress.ip_network(first, strict=False)
            found = AddressRange(network[0], network[-1])
    except ValueError:
        raise ValueError(f'"{text}" is no range of addresses: {_HINT}') from None
    if found.last not in found:
        raise ValueError(f'"{text}" is no range of addresses: it ends before it begins')
    return found


# Each connection asks for its own several times.
@lru_cache(maxsize=4096)
def parse_address(text: str) -> Address:
    """A client's address; IPv4 where it came in as IPv6 (`::ffff:192.0.2.7`). Raises ValueError."""
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


@lru_cache(maxsize=4096)
def is_loopback(text: str) -> bool:
    """Of a client's address. Raises ValueError."""
    return parse_address(text).is_loopback


def is_within(address: Address, ranges: Iterable[AddressRange]) -> bool:
    return any(address in one for one in ranges)
