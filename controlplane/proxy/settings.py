"""The proxy's settings for operators, with defaults that are safe in production."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv4Network, IPv6Network

from controlplane.proxy.limits import ConnectionLimits
from controlplane.proxy.peers import PeerGroup


class PlainConnections(Enum):
    """The clients that may connect without TLS."""

    NEVER = "never"
    # Clients on this host, whose traffic nobody else can read.
    LOOPBACK = "loopback"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """Times are in seconds."""

    # Endpoints have host names one label below it.
    region_host: str
    # Determines the SCRAM salt sent for an unknown role, so that the salt stays the same across
    # restarts. Must be kept secret.
    secret: bytes = field(repr=False)
    host: str = "127.0.0.1"
    port: int = 5432
    # A second port with the same service, such as 443 for HTTP clients that use no other.
    http_port: int | None = None
    plain_connections: PlainConnections = PlainConnections.LOOPBACK
    # From the first byte to successful authentication.
    startup_timeout: float = 30.0
    # From successful authentication to a compute that answers.
    wake_timeout: float = 30.0
    # Connections that have not authenticated yet, in each process.
    max_pending: int = 1_000
    # Connections that have authenticated, in all processes together.
    max_connections: int = 10_000
    max_connections_per_account: int = 5_000
    max_connections_per_endpoint: int = 2_000
    max_connections_per_role: int = 1_000
    # How long a client's connection may be silent before the kernel checks that it still exists.
    keepalive_idle: int = 60
    # Networks of load balancers, whose connections begin with the client's address: `forwarding`.
    load_balancers: Sequence[IPv4Network | IPv6Network] = ()
    # Set if several processes share the port.
    peers: PeerGroup | None = None

    @property
    def limits(self) -> ConnectionLimits:
        return ConnectionLimits(
            total=self.max_connections,
            per_account=self.max_connections_per_account,
            per_endpoint=self.max_connections_per_endpoint,
            per_role=self.max_connections_per_role,
        )
