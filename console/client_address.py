"""The address of the client that sent a request, also if it came through reverse proxies.

A proxy appends the address that it got the request from to X-Forwarded-For. Anybody can send such a
header, so it is read from the right, and only as far as the operator's own proxies wrote it.
`controlplane/api/http/client_address.py` is this module's copy in the other program, because
neither may import the other; a test compares both.
"""

import hmac
import ipaddress
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_current: ContextVar[str] = ContextVar("client_address", default="")


@contextmanager
def client_context(client: str) -> Iterator[None]:
    """In this block, also in threads that copy the context, `current` returns this address."""
    token = _current.set(client)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> str:
    """The address of the browser whose request is being served; "" if none is."""
    return _current.get()


def signed(secret: str) -> str:
    """`current`, and its signature with the console's key, by which the API knows that it is the
    console who says so. The API then counts wrong keys by user, although all come from here."""
    if not (address := current()):
        return ""
    made = hmac.new(secret.encode(), f"perch client address {address}".encode(), "sha256")
    return f"{address} {made.hexdigest()}"


def client_of(peer: str, forwarded_for: str, proxies: Sequence[Network]) -> str:
    """The client's address. `peer` is the address that the connection came from, `forwarded_for`
    the value of X-Forwarded-For.

    The result is the last address that is not one of `proxies`. If a proxy names something that is
    no address, it is that proxy, and if all are proxies, the first of them.
    """
    client = peer
    for text in (peer, *reversed(forwarded_for.split(","))):
        address = _parsed(text.strip())
        if address is None:
            return client
        client = str(address)
        if not _is_among(address, proxies):
            return client
    return client


def is_trusted(peer: str, proxies: Sequence[Network]) -> bool:
    """True if the address that a connection came from is that of one of the operator's proxies."""
    address = _parsed(peer)
    return address is not None and _is_among(address, proxies)


def _is_among(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)


def _parsed(text: str) -> Address | None:
    """The address, an IPv4 address also if it is written as IPv6; None for anything else. A zone
    ("%eth0") is refused, because it may contain any text."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return address
    return None if address.scope_id else address.ipv4_mapped or address
