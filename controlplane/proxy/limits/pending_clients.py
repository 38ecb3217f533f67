"""Bounds the clients that have not authenticated yet, and chooses which of them is closed when one
more arrives."""

from collections import OrderedDict
from ipaddress import IPv6Address
from typing import Protocol

from controlplane.address_ranges import parse_address

# A user of one address in such a network usually has all of them.
_IPV6_NETWORK_BITS = 64


class PendingClient(Protocol):
    """See `session.Session`."""

    client_address: str

    def abandon(self) -> None: ...


class PendingClients:
    """Keeps at most `most` clients. Beyond that it closes the oldest client of the origin that has
    most of them. An honest client authenticates within milliseconds, or seconds on a slow network,
    and comes from an origin with few clients."""

    def __init__(self, most: int) -> None:
        self._most = most
        # The origin of each client, and the clients of each origin, the oldest first.
        self._origins: dict[PendingClient, int] = {}
        self._crowds: dict[int, OrderedDict[PendingClient, None]] = {}

    def add(self, newcomer: PendingClient) -> None:
        origin = origin_of(newcomer.client_address)
        self._origins[newcomer] = origin
        self._crowds.setdefault(origin, OrderedDict())[newcomer] = None
        if len(self._origins) > self._most:
            fullest = max(self._crowds.values(), key=len)
            oldest = next(iter(fullest))
            self.remove(oldest)
            oldest.abandon()

    def remove(self, newcomer: PendingClient) -> bool:
        """Returns True if it was one of them."""
        origin = self._origins.pop(newcomer, None)
        if origin is None:
            return False
        crowd = self._crowds[origin]
        del crowd[newcomer]
        if not crowd:
            del self._crowds[origin]
        return True

    def note_address(self, newcomer: PendingClient) -> None:
        """Counts the client under its own address, which has just become known. Until now it was
        counted under its load balancer's."""
        if self.remove(newcomer):
            self.add(newcomer)


def origin_of(address: str) -> int:
    parsed = parse_address(address)
    if isinstance(parsed, IPv6Address):
        # Larger than any IPv4 address, for every IPv6 network in use.
        return int(parsed) >> (128 - _IPV6_NETWORK_BITS)
    return int(parsed)
