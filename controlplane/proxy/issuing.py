"""Issues certificates by Perch's own authority. The region's certificate has a wildcard for the
endpoints below the region's host, and usually every client is shown that. But clients that follow
OpenSSL's rules do not accept a wildcard below a single label (`*.localhost`). In a region with such
a host, each endpoint's name gets a certificate of its own when a client asks for it.

Such a certificate and its OpenSSL context cost a millisecond and 25 kB, and anybody may ask for any
name. So only names that an endpoint could have get one. Few certificates are kept for names under
which no client has authenticated yet, and their number in each second is limited. A client beyond
the limit is shown the region's certificate, which suits all clients that do not verify the name.
"""

import os
import re
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from controlplane.proxy.authority import CERTIFICATE_LIFETIME, Authority, private_pem
from controlplane.proxy.tls import ClientTlsSocket, end_point_hash, server_context

_ENDPOINT_LABEL = re.compile(r"ep-[a-z0-9]+(-[a-z0-9]+){1,4}")
# The host names below the region's that clients of SQL over HTTP use.
_HTTP_LABELS = ("api", "apiauth")
_LOOPBACK = ["127.0.0.1", "::1"]
_MOST_PROVEN, _MOST_UNPROVEN = 2_000, 250
# New names for each second, and how many may be issued at once.
_PACE, _BURST = 50.0, 200.0
_RENEW_AFTER = CERTIFICATE_LIFETIME * 2 / 3


@dataclass(frozen=True, slots=True)
class _Shown:
    context: ssl.SSLContext
    channel_binding: bytes
    renew_at: datetime


class IssuingIdentity:
    """See `tls.TlsIdentity`. Used by one process. If it is made before processes are forked, they
    all share one key."""

    def __init__(
        self,
        authority: Authority,
        region_host: str,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._authority = authority
        self._region_host = region_host
        self._wildcard_holds = "." in region_host.strip(".")
        self._now = now
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._own_names = _own_names(region_host)
        self._region = self._issue(self._own_names)
        # By name, the last used at the end.
        self._proven: OrderedDict[str, _Shown] = OrderedDict()
        self._unproven: OrderedDict[str, _Shown] = OrderedDict()
        self._may_issue = _BURST
        self._counted_at = time.monotonic()

    @property
    def context(self) -> ssl.SSLContext:
        return self._of_region().context

    @property
    def authority_pem(self) -> str:
        return self._authority.pem

    def note_proven(self, server_name: str | None) -> None:
        """See `tls.TlsIdentity`. The name's certificate is kept longer than those of names under
        which no client has authenticated."""
        name = _normal(server_name or "")
        if shown := self._unproven.pop(name, None):
            _keep(self._proven, name, shown, most=_MOST_PROVEN)

    def _choose(
        self, socket: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext
    ) -> None:
        """Chooses the certificate. Called in the handshake, once the client's SNI is known."""
        if not isinstance(socket, ClientTlsSocket):
            return
        socket.server_name = name
        if name is not None:
            shown = self._of_name(_normal(name))
        else:
            # A client that connects to an address sends no name.
            shown = self._of_address(socket.getsockname()[0].partition("%")[0])
        socket.context, socket.channel_binding = shown.context, shown.channel_binding

    def _of_name(self, name: str) -> _Shown:
        label = name.removesuffix(f".{self._region_host}")
        if self._wildcard_holds or label == name or not _ENDPOINT_LABEL.fullmatch(label):
            return self._of_region()
        return self._kept_or_issued(name, [name])

    def _of_address(self, address: str) -> _Shown:
        if address in self._own_names:
            return self._of_region()
        return self._kept_or_issued(address, [address, *self._own_names])

    def _of_region(self) -> _Shown:
        if self._region.renew_at <= self._now():
            self._region = self._issue(self._own_names)
        return self._region

    def _kept_or_issued(self, name: str, names: list[str]) -> _Shown:
        kept, most = self._unproven, _MOST_UNPROVEN
        if name in self._proven:
            kept, most = self._proven, _MOST_PROVEN
        shown = kept.get(name)
        if shown is None or shown.renew_at <= self._now():
            if kept is self._unproven and not self._takes_turn():
                return self._of_region()
            shown = self._issue(names)
        _keep(kept, name, shown, most=most)
        return shown

    def _takes_turn(self) -> bool:
        """Returns True if one more new name may get a certificate now, and counts it."""
        now = time.monotonic()
        gained = (now - self._counted_at) * _PACE
        self._may_issue = min(_BURST, self._may_issue + gained)
        self._counted_at = now
        if self._may_issue < 1:
            return False
        self._may_issue -= 1
        return True

    def _issue(self, names: list[str]) -> _Shown:
        now = self._now()
        leaf = self._authority.issue(names, self._key, now=now)
        context = _context_of(private_pem(self._key) + leaf.public_bytes(Encoding.PEM))
        context.sni_callback = self._choose
        return _Shown(context, end_point_hash(leaf), now + _RENEW_AFTER)


def _own_names(region_host: str) -> list[str]:
    """Returns the names that the region's certificate is valid for."""
    names = [region_host, f"*.{region_host}"]
    names += [f"{label}.{region_host}" for label in _HTTP_LABELS]
    if region_host == "localhost" or region_host.endswith(".localhost"):
        names += ["localhost", *_LOOPBACK]
    return list(dict.fromkeys(names))


def _normal(name: str) -> str:
    return name.rstrip(".").lower()


def _keep(kept: OrderedDict[str, _Shown], name: str, shown: _Shown, *, most: int) -> None:
    kept[name] = shown
    kept.move_to_end(name)
    if len(kept) > most:
        kept.popitem(last=False)


def _context_of(pem: bytes) -> ssl.SSLContext:
    """Loads the key and certificate by a file in memory, because Python loads them only from
    files. They are never written to a disk."""
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pem)
        return server_context(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
