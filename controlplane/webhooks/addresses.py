"""Which addresses a webhook may lead to: anybody's on the Internet, and what the operator allows.

An account must not reach through Perch what only Perch's host reaches: its own services, its
network, a cloud's metadata. The tables are our own, as Python's idea of a private address differs
from version to version.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from django.conf import settings

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# IANA's special purposes, and what else is nobody's on the Internet.
NOT_PUBLIC_4 = [
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # a carrier's, shared
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # a cloud's host, public in its number only
        "169.254.0.0/16",  # link-local, and clouds' metadata
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays from 6to4
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
]
# Only from here are addresses given out for the Internet: loopback, link-local, unique local,
# site-local and multicast lie outside.
PUBLIC_6 = IPv6Network("2000::/3")
NOT_PUBLIC_6 = [
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which carries an IPv4 address
        "3fff::/20",  # documentation
    )
]
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
