"""Which addresses a webhook may be sent to: public addresses on the Internet, and the networks that
the operator allows.

Through Perch, an account must not reach addresses that only Perch's host can reach
(`public_addresses`).
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from django.conf import settings

from controlplane.public_addresses import NOT_PUBLIC_4, NOT_PUBLIC_6, PUBLIC_6

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# In these networks, the last 32 bits are the IPv4 address that a packet finally reaches.
EMBEDDING = [
    IPv6Network("::ffff:0:0/96"),  # mapped
    IPv6Network("64:ff9b::/96"),  # NAT64: how a host without IPv4 reaches IPv4 addresses
]


def may_be_called(address: str) -> bool:
    """True if a request may be sent to this IP address, which is in the form that a resolver
    returns."""
    real = _real(address)
    return _is_within(real, settings.WEBHOOK_ALLOWED_NETWORKS) or _is_public(real)


def is_allowed_by_operator(address: str) -> bool:
    """True if the address is in the networks that the operator allows. Plain HTTP is accepted
    there."""
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
