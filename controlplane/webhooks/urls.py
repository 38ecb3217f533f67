"""Checks a URL that an account sends for a webhook, and the URL of every redirect."""

import re
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from django.conf import settings

from controlplane.webhooks.addresses import may_be_called

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
