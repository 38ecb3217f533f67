"""What the proxy asks of the outside world: who may connect to an endpoint, and where its compute
answers. The proxy knows nothing else of the control plane."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from controlplane.proxy.access_rules import AccessRules
from controlplane.proxy.lives import Life
from controlplane.proxy.traffic import Tally


@dataclass(frozen=True, slots=True)
class RoleIdentity:
    """Which role a session is of: of two with the same name, one may have followed the other."""

    # Its row; None where SQL has made the role, and the rows do not know it yet.
    row: int | None = None
    # What its compute numbers it by; None where that was not asked.
    oid: int | None = None
    # Sessions that were begun before this end.
    sessions_end_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint as one role sees it."""

    endpoint_id: str
    # Whose endpoint it is; its connections are counted.
    account_id: int
    # `SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>`; None where the role does not
    # exist or may not log in.
    verifier: str | None
    identity: RoleIdentity = RoleIdentity()
    # Whether the rows know all that the compute says of the role.
    is_in_rows: bool = True
    # The run of the compute that has confirmed it; None where only the rows were asked.
    confirmed_by: str | None = None
    disabled: bool = False
    # How many connections that account may have by its plan; None for as many as the proxy allows.
    account_connections: int | None = None
    # The endpoint's plain host name leads to its pooler too (`pooler_enabled`).
    always_pooled: bool = False
    # From where clients may come; None for anywhere.
    rules: AccessRules | None = None


@dataclass(frozen=True, slots=True)
class ComputeAddress:
    """Where a running compute, or the pooler beside it, answers without a password."""

    socket: Path
    # Tells one run of the compute from the next at the same path, as its start time does.
    run: str = ""
    # Of a pooler's address: PgBouncer's version, and the compute's life, which it may outlive.
    pooler_version: tuple[int, int] | None = None
    life: Life | None = field(default=None, compare=False)


class Directory(Protocol):
    """Implementations are called from the proxy's event loop, by many clients at once."""

    def note_refusal(
        self, route: Route | None, role: str, *, address: str, is_outside: bool = False
    ) -> None:
        """A client from the address has shown a wrong password for the role, or named what does
        not exist; or it may not come from there (`is_outside`)."""
        ...

    def counting(self, endpoint_id: str) -> AbstractContextManager[Tally]:
        """Where to add what is sent to a client of the endpoint, in bytes, while it is connected to
        the compute that `wake` has given it."""
        ...

    async def route(self, endpoint_id: str, role: str) -> Route | None:
        """None where no endpoint has this id. Called before the client has proved anything.

        Raises WakeFailed where that cannot be known now.
        """
        ...

    def lookup_time(self) -> float:
        """Seconds in which most names are looked up that `route` does not know yet."""
        ...

    async def rules(self, endpoint_id: str, role: str) -> AccessRules | None:
        """From where the endpoint's clients may come now; of those that a route was found for."""
        ...

    async def confirm(
        self, route: Route, role: str, address: ComputeAddress, *, pooled: bool
    ) -> RoleIdentity:
        """Whose session may begin at the address, now that the client has shown the password of
        `route`: SQL may have changed the role there since the rows were last brought to it.

        Raises PasswordFailed where that password holds no more, LoginUnknown where the compute
        does not say.
        """
        ...

    async def wake(
        self, endpoint_id: str, *, pooled: bool, refused: ComputeAddress | None = None
    ) -> ComputeAddress:
        """The address of the endpoint's compute, once it answers.

        Called only for a client that has shown the right password, and at most once at a time for
        an endpoint and kind of connection. May be cancelled when nobody waits any more. `refused`
        is an address that did not answer although an earlier call gave it: the compute died.

        Raises DisabledEndpointRefused, QuotaUsedUp, or WakeFailed with a reason that the client
        is to read.
        """
        ...


class Clients(Protocol):
    """Those of the proxy, as the directory ends them."""

    def drop(self, endpoint_id: str) -> int:
        """End the endpoint's; returns how many."""
        ...

    def hold_to(self, endpoint_id: str, rules: AccessRules | None) -> int:
        """End those of the endpoint's that come from where none may any more; returns how many."""
        ...

    def park(self, endpoint_id: str) -> None:
        """Have the endpoint's pooled clients let go of its pooler, each as soon as it can."""
        ...

    def of_endpoint(self, endpoint_id: str) -> "Sequence[Client]":
        """Those that have shown a password."""
        ...


class Client(Protocol):
    role: str
    identity: RoleIdentity
    # Whether nothing of it is in any compute, or on its way to one.
    is_parked: bool

    def confirm_again(self) -> bool:
        """Have a client that is on its way to the compute be judged there anew, as its role is
        another now; False where it is there already."""
        ...

    def end_login(self, reason: str) -> None:
        """End the connection, telling the client why if it can still be told."""
        ...
