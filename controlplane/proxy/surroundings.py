"""The objects that all sessions of a proxy share."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from controlplane.proxy.compute import CancelKey
from controlplane.proxy.directory import Directory
from controlplane.proxy.over_http.queries import Queries
from controlplane.proxy.pacing import FailurePace
from controlplane.proxy.password_checks import PasswordChecks
from controlplane.proxy.readiness import Readiness
from controlplane.proxy.registry import Registry
from controlplane.proxy.settings import ProxySettings
from controlplane.proxy.shared_wakes import SharedWakes
from controlplane.proxy.shares import Shares
from controlplane.proxy.tls import TlsIdentity


@dataclass(frozen=True, slots=True)
class Surroundings:
    settings: ProxySettings
    identity: TlsIdentity
    readiness: Readiness
    registry: Registry
    directory: Directory
    wakes: SharedWakes
    # `shares` counts for accounts, `logins` for pairs of a client's address and an endpoint.
    shares: Shares
    logins: Shares
    failure_pace: FailurePace
    passwords: PasswordChecks
    queries: Queries
    # Cancels the query that runs under the key, in this process or in a peer.
    cancel: Callable[[CancelKey], Awaitable[None]]
