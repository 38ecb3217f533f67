"""What the proxy asks of the outside world: who may connect to an endpoint, and where its compute
answers. The proxy knows nothing else of the control plane."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from controlplane.proxy.access_rules import AccessRules
from controlplane.proxy.traffic import Tally


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint as one role sees it."""

    endpoint_id: str
    # Whose endpoint it is; its connections are counted.
    account_id: int
    # `SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>`; None where the role does not
    # exist or may not log in.
    verifier: str | None
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
