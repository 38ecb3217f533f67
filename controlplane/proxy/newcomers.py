"""Those who have shown no password yet: of how many there are, and who gives way to one more."""

from collections import OrderedDict
from ipaddress import IPv6Address
from typing import Protocol

from controlplane.address_ranges import parse_address

# Whoever has one address of such a network has them all.
_IPV6_NETWORK_BITS = 64


class Newcomer(Protocol):
    """See `session.Session`."""

    client_address: str

    def abandon(self) -> None: ...


class Newcomers:
    """At most so many. Past that, the oldest gives way of those from the address that has the most:
    who is honest needs milliseconds, or, on a slow way, seconds, but comes from where few do."""

    def __init__(self, most: int) -> None:
        self._most = most
        # Where each comes from, and who has come from there, the oldest first.
        self._origins: dict[Newcomer, int] = {}
        self._crowds: dict[int, OrderedDict[Newcomer, None]] = {}

    def add(self, newcomer: Newcomer) -> None:
        origin = origin_of(newcomer.client_address)
        self._origins[newcomer] = origin
        self._crowds.setdefault(origin, OrderedDict())[newcomer] = None
        if len(self._origins) > self._most:
            fullest = max(self._crowds.values(), key=len)
            oldest = next(iter(fullest))
            self.remove(oldest)
            oldest.abandon()

    def remove(self, newcomer: Newcomer) -> bool:
        """Whether it was one."""
        origin = self._origins.pop(newcomer, None)
        if origin is None:
            return False
        crowd = self._crowds[origin]
        del crowd[newcomer]
        if not crowd:
            del self._crowds[origin]
        return True

    def note_address(self, newcomer: Newcomer) -> None:
        """Its address has become known, which was a load balancer's until now."""
        if self.remove(newcomer):
            self.add(newcomer)


def origin_of(address: str) -> int:
    parsed = parse_address(address)
    if isinstance(parsed, IPv6Address):
        # Beyond what an address of IPv4 can be, for every network that there is.
        return int(parsed) >> (128 - _IPV6_NETWORK_BITS)
    return int(parsed)
