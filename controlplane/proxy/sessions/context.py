"""The objects that all sessions of a proxy share."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from controlplane.proxy.authentication.passwords import PasswordChecks
from controlplane.proxy.directory.interface import Directory
from controlplane.proxy.limits.connection_limits import OpeningSessions
from controlplane.proxy.limits.pending_clients import FailurePace
from controlplane.proxy.over_http.queries import Queries
from controlplane.proxy.peers.connections import Peers
from controlplane.proxy.relaying.compute import CancelKey
from controlplane.proxy.sessions.connected_sessions import ConnectedSessions
from controlplane.proxy.sessions.shared_wakes import SharedWakes
from controlplane.proxy.settings import ProxySettings
from controlplane.proxy.wire.readiness import Readiness
from controlplane.proxy.wire.tls import TlsIdentity


@dataclass(frozen=True, slots=True)
class ProxyContext:
    settings: ProxySettings
    identity: TlsIdentity
    readiness: Readiness
    sessions: ConnectedSessions
    directory: Directory
    wakes: SharedWakes
    failure_pace: FailurePace
    opening: OpeningSessions
    passwords: PasswordChecks
    queries: Queries
    peers: Peers
    # Cancels the query that runs under the key, in this process or in another one of this host.
    cancel: Callable[[CancelKey], Awaitable[None]]
