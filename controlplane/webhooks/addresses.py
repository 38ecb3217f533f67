"""Which addresses a webhook may lead to: anybody's on the Internet, and what the operator allows.

An account must not reach through Perch what only Perch's host reaches (`public_addresses`).
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from django.conf import settings

from controlplane.public_addresses import NOT_PUBLIC_4, NOT_PUBLIC_6, PUBLIC_6

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# In these the last 32 bits are an IPv4 address, which is where the way ends.
EMBEDDING = [
    IPv6Network("::ffff:0:0/96"),  # mapped
    IPv6Network("64:ff9b::/96"),  # NAT64: all that a host without IPv4 knows of one with it
]


def may_be_called(address: str) -> bool:
    """Whether a request may go to the IP address, as a resolver gives it."""
    real = _real(address)
    return _is_within(real, settings.WEBHOOK_ALLOWED_NETWORKS) or _is_public(real)


def is_allowed_by_operator(address: str) -> bool:
    """Whether it is in the networks that the operator vouches for, where plain HTTP will do."""
    return _is_within(_real(address), settings.WEBHOOK_ALLOWED_NETWORKS)


def _real(address: str) -> Address:
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address) and _is_within(found, EMBEDDING):
        return IPv4Address(int(found) & 0xFFFF_FFFF)
    return found


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return not _is_within(address, NOT_PUBLIC_4)
    return address in PUBLIC_6 and not _is_within(address, NOT_PUBLIC_6)


def _is_within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)
