"""How this host's worker reaches the workers of other hosts. `fleet.host_links` connects them. The
worker sets it when it begins; no other process loads it."""

import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from controlplane.fleet.messages import LinkBroken
from controlplane.models import Host


@dataclass(frozen=True)
class HostLinks:
    # Opens a connection to the host's worker. Raises LinkBroken.
    connect: Callable[[Host], socket.socket]
    # Starts the process that carries the log of a receiver. Raises OSError.
    carry_log: Callable[[Host, str, socket.socket, int], "subprocess.Popen[bytes]"]


_links: HostLinks | None = None


def reach_hosts_by(links: HostLinks) -> None:
    """Let this process reach other hosts by `host_links`."""
    global _links
    _links = links


def host_links() -> HostLinks:
    """Raises LinkBroken if this process is no worker."""
    if _links is None:
        raise LinkBroken("only a worker connects to other hosts")
    return _links
