"""The address of the client that sent a request, also if it came through reverse proxies.

A proxy appends the address that it got the request from to X-Forwarded-For. Anybody can send such a
header, so it is read from the right, and only as far as the operator's own proxies wrote it.
`console/client_address.py` is this module's copy in the other program, because
neither may import the other; a test compares both.
"""

import hmac
import ipaddress
from collections.abc import Sequence

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


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
        if not any(address in network for network in proxies):
            return client
    return client


def signed_address(header: str, keys: Sequence[str]) -> str:
    """The address of its user that the console has signed with one of these keys; "" if there is
    none. The console is then believed wherever it connects from."""
    address, _, signature = header.partition(" ")
    # Django is not used: this is imported before gevent has patched what Django imports.
    said = f"perch client address {address}".encode()
    is_ours = any(
        hmac.compare_digest(
            signature.encode(), hmac.new(key.encode(), said, "sha256").hexdigest().encode()
        )
        for key in keys
    )
    return address if is_ours and _parsed(address) else ""


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
