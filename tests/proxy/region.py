"""Two proxies of a region. Both know the endpoints of the second, which are on the second's
host."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from controlplane.proxy.directory.interface import PeerHost
from controlplane.proxy.wire.peer_tls import PeerCertificate, new_peer_certificate
from controlplane.proxy.wire.tls import TlsIdentity
from tests.proxy.running_proxy import MemoryDirectory, RunningProxy, running_proxy

FIRST, SECOND = "first", "second"


@dataclass(frozen=True)
class Region:
    first: RunningProxy
    second: RunningProxy
    # The certificates of the two.
    certificates: tuple[PeerCertificate, PeerCertificate]

    def introduce(self, **changes: Any) -> None:
        """Publish each host to the other. `changes` are of what the first knows of the second."""
        one, other = self.certificates
        second = PeerHost(SECOND, "127.0.0.1", self.second.port, other.certificate)
        first = PeerHost(FIRST, "127.0.0.1", self.first.port, one.certificate)
        self.first.directory.hosts = {SECOND: replace(second, **changes)}
        self.second.directory.hosts = {FIRST: first}


@contextmanager
def running_region(
    identity: TlsIdentity,
    directory: MemoryDirectory,
    *,
    first: dict[str, Any] | None = None,
    second: dict[str, Any] | None = None,
    unread: bool = False,
) -> Iterator[Region]:
    """Run the two. `directory` is the second's; `first` and `second` are their settings. With
    `unread`, the first passes on TLS connections without reading them."""
    at_first = MemoryDirectory()
    at_first.tells_early = unread
    for name, endpoint in directory.endpoints.items():
        at_first.endpoints[name] = replace(endpoint, host_id=SECOND)
    certificates = (certificate(), certificate())
    with ExitStack() as running:
        # The descriptors of one must not be counted as the other's, so they end in this order.
        other = running.enter_context(
            running_proxy(identity, directory, certificates[1], host_id=SECOND, **(second or {}))
        )
        one = running.enter_context(
            running_proxy(identity, at_first, certificates[0], host_id=FIRST, **(first or {}))
        )
        region = Region(one, other, certificates)
        region.introduce()
        yield region


def certificate() -> PeerCertificate:
    return new_peer_certificate(datetime.now(UTC))
