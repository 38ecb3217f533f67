"""The proxy's settings for operators, with defaults that are safe in production."""

import contextlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from controlplane.proxy.limits.connection_limits import SLOTS, ConnectionLimits, SharedCounts


@dataclass(frozen=True, slots=True)
class Siblings:
    """This process's place among the proxy processes behind one port, also those of a previous
    generation that still serves its clients."""

    # This process's slot of `counts`, below `SLOTS`.
    number: int
    # See `own_directory`. A process that can reach a socket in it could guess cancel keys.
    directory: Path
    counts: SharedCounts

    def owner_of(self, pid: int) -> int:
        """Returns the number of the process that issued a cancel key with this process id."""
        return pid % SLOTS

    def own_pid(self, pid: int) -> int:
        """Returns a process id near this one whose owner is this process."""
        return pid - pid % SLOTS + self.number

    def socket(self, number: int) -> Path:
        return self.directory / f"proxy-{number}.sock"


# The places of a cancel key's process id that show which host has issued it, above those that show
# which of its processes has (`SLOTS`).
_MARKS = 256


def mark_of_host(host_id: str) -> int:
    """Returns the host's mark in the cancel keys that it issues. Two hosts may have the same."""
    return int.from_bytes(blake2b(host_id.encode(), digest_size=4).digest()) % _MARKS


def mark_of_key(pid: int) -> int:
    """Returns the mark of the host that issued a cancel key with this process id."""
    return pid // SLOTS % _MARKS


def marked(pid: int, host_id: str) -> int:
    """Returns a process id near this one, with the host's mark."""
    return pid + (mark_of_host(host_id) - mark_of_key(pid)) * SLOTS


class PlainConnections(Enum):
    """The clients that may connect without TLS."""

    NEVER = "never"
    # Clients on this host, whose traffic nobody else can read.
    LOOPBACK = "loopback"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """Times are in seconds."""

    # Endpoints have host names one label below each of these: the region's and this host's own.
    domains: Sequence[str]
    # Determines the SCRAM salt sent for an unknown role, so that the salt stays the same across
    # restarts. Must be kept secret.
    secret: bytes = field(repr=False)
    # The id of this host, unique in its region.
    host_id: str = ""
    # The address to listen on, and the port.
    host: str = "127.0.0.1"
    port: int = 5432
    # A second port with the same service, such as 443 for HTTP clients that use no other.
    http_port: int | None = None
    plain_connections: PlainConnections = PlainConnections.LOOPBACK
    # From the first byte to successful authentication.
    startup_timeout: float = 30.0
    # From successful authentication to a compute that answers.
    wake_timeout: float = 30.0
    # The same while the compute's branch is being made.
    branch_timeout: float = 300.0
    # Connections that have not authenticated yet, in each process.
    max_pending: int = 1_000
    # Of connections that have authenticated, in all processes together.
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    # How long clients may stay that are connected when another generation takes the proxy's place.
    drain_timeout: float = 3_600.0
    # Networks of load balancers, whose connections begin with the client's address:
    # `startup.client_address`.
    load_balancers: Sequence[IPv4Network | IPv6Network] = ()
    # Set if several processes share the port.
    siblings: Siblings | None = None


def own_directory(path: Path) -> Path:
    """Creates a directory that only this account may enter. If the directory exists, checks that
    this account owns it, and sets its permissions. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise OSError(f"{path} is not a directory owned by this user")
    path.chmod(0o700)
    return path
