"""Checks a URL that an account sends for a webhook, and the URL of every redirect: a request may
only be sent to public addresses on the Internet, and to the networks that the operator allows.

Through Perch, an account must not reach addresses that only Perch's host can reach
(`controlplane.address_ranges`).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

from django.conf import settings

from controlplane.address_ranges import NOT_PUBLIC_4, NOT_PUBLIC_6, PUBLIC_6

MAX_URL_LENGTH = 2048
DEFAULT_PORTS = {"http": 80, "https": 443}
# The characters that a URL may contain. All others must be escaped.
ALLOWED = re.compile(r"[!-~]+")
HOST = re.compile(r"[a-z0-9_]([a-z0-9._-]*[a-z0-9_])?\.?", re.IGNORECASE)


class NotAllowed(Exception):
    """No request may be sent to this URL; the message says why."""


@dataclass(frozen=True)
class Target:
    """Where a request goes."""

    scheme: str
    host: str  # without a final dot, and an IPv6 address without brackets
    port: int
    path: str  # with the query

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def target_of(url: str) -> Target:
    """Parse and check a URL. Raises NotAllowed.

    The addresses of a host name are checked when it is called, because they may change.
    """
    if len(url) > MAX_URL_LENGTH:
        raise NotAllowed(f"a URL may have at most {MAX_URL_LENGTH} characters")
    if not ALLOWED.fullmatch(url):
        raise NotAllowed("a URL must be ASCII without spaces; escape other characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise NotAllowed(f"not a URL: {error}") from None
    _check_scheme(parts.scheme)
    if "@" in parts.netloc:
        raise NotAllowed("a URL must not contain a user name or a password")
    if port == 0 or parts.fragment:
        raise NotAllowed("a URL must not have the port 0 or a fragment")
    host = (parts.hostname or "").removesuffix(".")
    _check_host(host)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port or DEFAULT_PORTS[parts.scheme], path)


def _check_scheme(scheme: str) -> None:
    if scheme == "https":
        return
    if scheme == "http" and settings.WEBHOOK_ALLOWED_NETWORKS:
        # Plain HTTP is allowed only to these networks, which is checked when the URL is called.
        return
    raise NotAllowed(
        "a URL must begin with https:// (http:// is for the networks of "
        "PERCH_WEBHOOK_ALLOWED_NETWORKS, and there are none)"
    )


def _check_host(host: str) -> None:
    try:
        address = str(ip_address(host))
    except ValueError:
        if not HOST.fullmatch(host):
            raise NotAllowed("a URL must name a host") from None
        return
    if not may_be_called(address):
        raise NotAllowed(
            f"{host} is not a public address, and not in PERCH_WEBHOOK_ALLOWED_NETWORKS"
        )


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
