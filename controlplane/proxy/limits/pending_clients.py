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
        self._by_origin: dict[int, OrderedDict[PendingClient, None]] = {}

    def add(self, client: PendingClient) -> None:
        origin = origin_of(client.client_address)
        self._origins[client] = origin
        self._by_origin.setdefault(origin, OrderedDict())[client] = None
        if len(self._origins) > self._most:
            largest = max(self._by_origin.values(), key=len)
            oldest = next(iter(largest))
            self.remove(oldest)
            oldest.abandon()

    def remove(self, client: PendingClient) -> bool:
        """Returns True if it was one of them."""
        origin = self._origins.pop(client, None)
        if origin is None:
            return False
        others = self._by_origin[origin]
        del others[client]
        if not others:
            del self._by_origin[origin]
        return True

    def note_address(self, client: PendingClient) -> None:
        """Counts the client under its own address, which has just become known. Until now it was
        counted under its load balancer's."""
        if self.remove(client):
            self.add(client)


def origin_of(address: str) -> int:
    parsed = parse_address(address)
    if isinstance(parsed, IPv6Address):
        # Larger than any IPv4 address, for every IPv6 network in use.
        return int(parsed) >> (128 - _IPV6_NETWORK_BITS)
    return int(parsed)
