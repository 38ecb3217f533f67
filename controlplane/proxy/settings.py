"""What an operator can set of the proxy, with defaults that are safe in production."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv4Network, IPv6Network

from controlplane.proxy.limits import ConnectionLimits
from controlplane.proxy.peers import PeerGroup


class PlainConnections(Enum):
    """Who may connect without TLS."""

    NEVER = "never"
    # Clients on this machine, whose traffic nobody else sees.
    LOOPBACK = "loopback"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """Times are in seconds."""

    # Endpoints answer to names one label below it.
    region_host: str
    # Keeps what an unknown role is asked the same from one start to the next. Not to be published.
    secret: bytes = field(repr=False)
    host: str = "127.0.0.1"
    port: int = 5432
    # Another port where the same is served: HTTP's own, as 443, for clients that take no other.
    http_port: int | None = None
    plain_connections: PlainConnections = PlainConnections.LOOPBACK
    # From the first byte to the right password.
    startup_timeout: float = 30.0
    # From the right password to a compute that answers.
    wake_timeout: float = 30.0
    # Connections that have not shown a password yet, in each process.
    max_pending: int = 1_000
    # Connections that have, in all processes together.
    max_connections: int = 10_000
    max_connections_per_account: int = 5_000
    max_connections_per_endpoint: int = 2_000
    max_connections_per_role: int = 1_000
    # What a client's connection may stay silent before the kernel asks whether it is still there.
    keepalive_idle: int = 60
    # Networks of load balancers, whose connections say whose they are: see `forwarding`.
    load_balancers: Sequence[IPv4Network | IPv6Network] = ()
    # Where several processes share the port.
    peers: PeerGroup | None = None

    @property
    def limits(self) -> ConnectionLimits:
        return ConnectionLimits(
            total=self.max_connections,
            per_account=self.max_connections_per_account,
            per_endpoint=self.max_connections_per_endpoint,
            per_role=self.max_connections_per_role,
        )
