"""The proxy's interface to the control plane: who may connect to an endpoint, and at which address
its compute answers. The proxy knows nothing else of the control plane."""

import os
import select
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from controlplane.compute.settings.pooler_settings import Version
from controlplane.metrics import figures
from controlplane.proxy.authentication.access_rules import AccessRules
from controlplane.proxy.wire.channel import Channel

# An endpoint, and the branch that its clients were connected to.
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class RoleIdentity:
    """Identifies a session's role, since a role may be replaced by another of the same name."""

    # The id of the role's row; None if SQL has created the role and the rows do not have it yet.
    row: int | None = None
    # The role's OID in the compute; None if the compute was not asked.
    oid: int | None = None
    # The row's `sessions_end_at` when the session started. The session ends once the row has a
    # later one.
    sessions_end_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint as one role sees it."""

    endpoint_id: str
    # The account that owns the endpoint, and that its connections are counted for.
    account_id: int
    # `SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>`; None if the role does not exist
    # or may not log in.
    verifier: str | None
    identity: RoleIdentity = RoleIdentity()
    # True if the rows agree with what the compute's catalog says of the role.
    is_in_rows: bool = True
    # The run of the compute that has confirmed the role; None if only the rows were asked.
    confirmed_by: str | None = None
    disabled: bool = False
    # How many connections the account's plan allows; None for as many as the proxy allows.
    account_connections: int | None = None
    # True if the endpoint's plain host name leads to its pooler too (`pooler_enabled`).
    always_pooled: bool = False
    # The addresses that clients may connect from; None for any.
    rules: AccessRules | None = None
    # The host that the endpoint's compute is on.
    host_id: str = ""
    # Where to connect instead, for the client, if that is another host of the region.
    elsewhere: str | None = None
    # Whether it is about to be stopped there and started on another host.
    is_moving: bool = False


@dataclass(frozen=True, slots=True)
class PeerHost:
    """Another host of the region, as it has published where its proxy can be reached by others."""

    id: str
    address: str
    port: int
    # See `wire.peer_tls`; in PEM.
    certificate: str


@dataclass(frozen=True, slots=True)
class ComputeStart:
    """The start of a compute that a wake has waited for. Times are of `time.monotonic`."""

    # The id of the operation, as its log lines have it.
    operation: str
    # When its operation was in the worker's queue, and when the compute was known to run.
    handed_over_at: float
    running_at: float


class OtherHost(Protocol):
    """The host of the region that a client's compute is on, if that is not this one. Its proxy
    takes this host's word for a client that has authenticated here, and then stands for a compute
    or pooler: it wakes that and greets the client."""

    async def open(self, *, to_cancel: bool) -> Channel:
        """Opens a connection for the client's start-up message, or for a cancel request. Raises
        HostUnreachable."""


class ComputeRun:
    """One run of a compute. `descriptor` becomes readable once the run has ended.

    `pooler_version` is PgBouncer's version, once the run is known to have a pooler.
    """

    def __init__(self, run: str, descriptor: int) -> None:
        self.run = run
        self.descriptor = descriptor
        self.pooler_version: Version | None = None
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._has_ended = False

    def has_ended(self) -> bool:
        """True if the run has ended. Makes a system call."""
        return self._has_ended or bool(self._poll.poll(0))

    def close(self) -> None:
        self._has_ended = True
        os.close(self.descriptor)


@dataclass(frozen=True, slots=True)
class ComputeAddress:
    """Where a running compute, or the pooler beside it, accepts sessions without a password."""

    # Unused if the compute is on another host.
    socket: Path
    # Tells one run of the compute from the next at the same path; made from its start time.
    run: str = ""
    # For a pooler's address: PgBouncer's version, and the run of the compute, which the pooler
    # may outlive.
    pooler_version: Version | None = None
    compute_run: ComputeRun | None = field(default=None, compare=False)
    # The start that this wake has waited for; None if the compute ran already.
    start: ComputeStart | None = field(default=None, compare=False)
    # Set if the compute is on another host.
    elsewhere: OtherHost | None = None


class Tally:
    """Bytes sent and not yet reported. The relay adds to it with every message, so it is only a
    slot."""

    __slots__ = ("bytes", "clients")

    def __init__(self) -> None:
        self.bytes = 0
        self.clients = 0


# The bytes that all clients together have sent to their computes.
RECEIVED = Tally()


class Traffic:
    """Counts the bytes sent to the clients of each endpoint, for as long as they are connected, and
    those received from all of them. Must be used within one event loop."""

    def __init__(self) -> None:
        self._tallies: dict[Key, Tally] = {}

    @contextmanager
    def counting(self, endpoint_id: str, branch_id: str) -> Iterator[Tally]:
        """Gives the tally that all of the endpoint's clients share, for one client's duration."""
        tally = self._tallies.setdefault((endpoint_id, branch_id), Tally())
        tally.clients += 1
        try:
            yield tally
        finally:
            tally.clients -= 1

    def take(self) -> Mapping[Key, int]:
        """Returns the bytes sent since the last call."""
        sent = {}
        for key, tally in list(self._tallies.items()):
            if tally.bytes:
                sent[key], tally.bytes = tally.bytes, 0
            elif not tally.clients:
                del self._tallies[key]
        figures.CLIENT_BYTES.labels("sent").inc(sum(sent.values()))
        figures.CLIENT_BYTES.labels("received").inc(RECEIVED.bytes)
        RECEIVED.bytes = 0
        return sent


class Directory(Protocol):
    """Implementations are called from the proxy's event loop, by many clients at once."""

    def note_refusal(
        self, route: Route | None, role: str, *, address: str, is_outside: bool = False
    ) -> None:
        """Notes that a client from the address has sent a wrong password for the role, or named an
        endpoint or role that does not exist; or that its address is not allowed (`is_outside`)."""

    def counting(self, endpoint_id: str) -> AbstractContextManager[Tally]:
        """Gives the tally to which to add the number of bytes sent to a client of the endpoint,
        while it is connected to the compute that `wake` returned."""

    async def route(self, endpoint_id: str, role: str) -> Route | None:
        """Returns the route of the role to the endpoint; None if no endpoint has this id. Called
        before the client has authenticated.

        Raises WakeFailed if the route cannot be known now.
        """

    def recent(self, endpoint_id: str, role: str) -> tuple[Route, ComputeAddress] | None:
        """Returns what `route` and then `wake` would, if they need ask nobody: the compute has just
        confirmed the role, still runs, and nothing of the endpoint has changed since. Otherwise
        None."""

    async def route_of_any_role(self, endpoint_id: str) -> Route | None:
        """Returns a route to the endpoint, whatever role it is of; None if no endpoint has this id.
        Called before the client has named its role.

        Raises ControlPlaneUnavailable.
        """

    def peers(self) -> Mapping[str, PeerHost]:
        """Returns the other hosts of the region by their ids, as last read. The result never
        changes; a later call may return another one."""

    async def read_peers(self) -> None:
        """Reads the other hosts of the region now, unless they have just been read: one of them may
        be new or have another certificate. Keeps the known ones if the database does not answer."""

    async def open_receiver(self) -> socket.socket | None:
        """Returns a connection to the worker of this host, which receives the projects that other
        hosts move here. None if it does not answer."""

    async def open_log_source(self, receiver_id: str, host_id: str) -> socket.socket | None:
        """Returns a connection to the compute of this host whose log this receiver gets, for the
        other host that asks. None if that host has no such receiver, or its compute does not
        run."""

    async def end_log_source(self, receiver_id: str) -> None:
        """Lets commits on this host go on if they wait for this receiver and no connection passes
        the log on to it any more. Called when such a connection has ended."""

    def lookup_time(self) -> float:
        """Returns the seconds in which most lookups of names that `route` does not know yet end."""

    async def rules(self, endpoint_id: str, role: str) -> AccessRules | None:
        """Returns the addresses that the endpoint's clients may connect from now, for an endpoint
        that `route` has found. None for any address."""

    async def confirm(
        self, route: Route, role: str, address: ComputeAddress, *, pooled: bool
    ) -> RoleIdentity:
        """Confirms that a session may begin at the address. Returns the identity of its role.

        Called once the client has authenticated against `route`: SQL may have changed the role in
        the compute since the rows were last synchronized with it. Raises PasswordFailed if that
        password is no longer valid, LoginUnknown if that cannot be known now.
        """

    async def wake(
        self, endpoint_id: str, *, pooled: bool, refused: ComputeAddress | None = None
    ) -> ComputeAddress:
        """Wakes the endpoint's compute. Returns the compute's address, once it answers.

        Called only for a client that has authenticated, and at most once at a time for an endpoint
        and kind of connection. May be cancelled when no client waits any more. `refused` is an
        address that an earlier call returned and that did not answer: the compute may have died.

        Raises DisabledEndpointRefused, QuotaUsedUp, or WakeFailed with a reason for the client.
        """

    async def waited_for(self, endpoint_id: str) -> tuple[str, bool]:
        """Returns what a start of the endpoint waits for, in words for its clients, and whether
        that makes its branch's data; "" and False if it waits for nothing or nobody can tell."""


class Clients(Protocol):
    """The proxy's clients, with the calls by which the directory ends or parks them."""

    def drop(self, endpoint_id: str, because: str) -> int:
        """Ends the endpoint's clients, telling them why; returns how many."""

    def enforce_rules(self, endpoint_id: str, rules: AccessRules | None) -> int:
        """Ends the endpoint's clients from addresses that are not allowed; returns how many."""

    def park(self, endpoint_id: str, because: str) -> None:
        """Disconnects the endpoint's pooled clients from its pooler, each as soon as possible.
        Clients that the compute ends are told why it stops. With "" it does not stop after
        all."""

    def of_endpoint(self, endpoint_id: str) -> "Sequence[Client]":
        """Returns the endpoint's clients that have authenticated."""


class Client(Protocol):
    role: str
    identity: RoleIdentity
    # True if nothing of the client is in any compute or is being connected to one.
    is_parked: bool

    def confirm_again(self) -> bool:
        """Makes a client that is being connected to the compute confirm its role there again,
        because the role was replaced. Returns False if the client is not being connected."""

    def end_login(self, reason: str) -> None:
        """Ends the connection, telling the client why if that is still possible."""
