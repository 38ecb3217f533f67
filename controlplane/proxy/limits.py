"""How many connections there may be, in all and for each account, endpoint and role, so that
nobody can use up the proxy for the others."""

from collections import Counter
from dataclasses import dataclass

from controlplane.proxy.errors import TooManyConnections


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    total: int
    per_account: int
    per_endpoint: int
    per_role: int
    # How many processes count, each by itself.
    processes: int = 1

    def share(self, processes: int) -> "ConnectionLimits":
        """What each of so many processes behind one port may take.

        They do not count together, and the kernel gives a connection to whichever is free, so
        none gets just its part: each may take half as much again. Together they may so exceed
        a limit by half, and meet it early only where one has got far more than its part.
        """
        return ConnectionLimits(
            total=_share(self.total, processes),
            per_account=_share(self.per_account, processes),
            per_endpoint=_share(self.per_endpoint, processes),
            per_role=_share(self.per_role, processes),
            processes=processes,
        )

    def of_account(self, allowed: int | None) -> int:
        """What an account may have here whose plan allows so many; None for any number."""
        if allowed is None:
            return self.per_account
        return min(self.per_account, _share(allowed, self.processes))


def _share(limit: int, processes: int) -> int:
    return min(limit, -(-limit * 3 // (2 * processes)))


@dataclass(frozen=True, slots=True)
class Admission:
    """Who a client has shown to be, by its password."""

    account_id: int
    endpoint_id: str
    role: str
    # As `Route.account_connections`.
    account_connections: int | None = None


class ConnectionCounts:
    """Counts clients that have shown their password; the others are bounded by themselves."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._counts: Counter[tuple[object, ...]] = Counter()

    def add(self, admission: Admission) -> None:
        """Raises TooManyConnections, naming the limit, and then counts nothing."""
        for key, limit, whose in self._kinds(admission):
            if self._counts[key] >= limit:
                raise TooManyConnections(whose, limit)
        for key, _, _ in self._kinds(admission):
            self._counts[key] += 1

    def remove(self, admission: Admission) -> None:
        for key, _, _ in self._kinds(admission):
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]

    def _kinds(self, admission: Admission) -> list[tuple[tuple[object, ...], int, str]]:
        """What is counted, up to how many, and whose limit that is in words."""
        account, endpoint, role = admission.account_id, admission.endpoint_id, admission.role
        of_account = self._limits.of_account(admission.account_connections)
        return [
            (("role", endpoint, role), self._limits.per_role, f'role "{role}" of {endpoint}'),
            (("endpoint", endpoint), self._limits.per_endpoint, f'endpoint "{endpoint}"'),
            (("account", account), of_account, "the endpoint's account"),
            (("total",), self._limits.total, "the proxy"),
        ]
