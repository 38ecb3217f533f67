"""Limits on the number of connections: in all, and for each account, endpoint and role. They keep
one user from taking up the whole proxy."""

from collections import Counter
from dataclasses import dataclass

from controlplane.proxy.limits.shared_counts import OwnCounts
from controlplane.proxy.wire.errors import TooManyConnections

# No account has this id.
NO_ACCOUNT = 0


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    total: int
    per_account: int
    per_endpoint: int
    per_role: int

    def of_account(self, allowed: int | None) -> int:
        """Returns the limit of an account whose plan allows `allowed`; None for any number."""
        return self.per_account if allowed is None else min(self.per_account, allowed)


@dataclass(frozen=True, slots=True)
class Admission:
    """The identity that a client has proved by its password."""

    account_id: int
    endpoint_id: str
    role: str
    # See `Route.account_connections`.
    account_connections: int | None = None

    @classmethod
    def unproved(cls, endpoint_id: str) -> "Admission":
        """Returns what a client counts as that is passed on unread to the endpoint's host, which
        admits it: one of the proxy's clients, and nobody's in particular."""
        return cls(NO_ACCOUNT, endpoint_id, "")


class ConnectionCounts:
    """Counts the clients that have authenticated. The others have a limit of their own
    (`PendingClients`). `shared` is given if other processes serve clients too."""

    def __init__(self, limits: ConnectionLimits, shared: OwnCounts | None = None) -> None:
        self._limits = limits
        self._counts: Counter[tuple[object, ...]] = Counter()
        self._shared = shared

    def add(self, admission: Admission) -> None:
        """Counts the client. Raises TooManyConnections, which names the limit, and then does not
        count it."""
        kinds = self._kinds(admission)
        # Count before comparing: of two processes that do so at once, each sees the other's.
        for key, _, _ in kinds:
            self._change(key, 1)
        for key, limit, whose in kinds:
            others = self._shared.of_others(key) if self._shared is not None else 0
            if self._counts[key] + others > limit:
                self.remove(admission)
                raise TooManyConnections(whose, limit)

    def remove(self, admission: Admission) -> None:
        for key, _, _ in self._kinds(admission):
            self._change(key, -1)

    def _change(self, key: tuple[object, ...], change: int) -> None:
        self._counts[key] += change
        if not self._counts[key]:
            del self._counts[key]
        if self._shared is not None:
            self._shared.add(key, change)

    def _kinds(self, admission: Admission) -> list[tuple[tuple[object, ...], int, str]]:
        """Returns, for each kind of limit, the key to count, the limit, and its owner in words."""
        total = (("total",), self._limits.total, "the proxy")
        if not admission.role:
            return [total]
        account, endpoint, role = admission.account_id, admission.endpoint_id, admission.role
        of_account = self._limits.of_account(admission.account_connections)
        return [
            (("role", endpoint, role), self._limits.per_role, f'role "{role}" of {endpoint}'),
            (("endpoint", endpoint), self._limits.per_endpoint, f'endpoint "{endpoint}"'),
            (("account", account), of_account, "the endpoint's account"),
            total,
        ]
