"""What an action needs to know beyond the operation's rows: one frozen class per action that
needs any. Written by the services, stored as JSON, read by the actions, their effects and the
proxy, always through `details_of`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from controlplane.models import Configuration


@dataclass(frozen=True)
class Details:
    """Nothing but the rows."""

    def as_json(self) -> dict[str, Any]:
        """What differs from the class's defaults."""
        return {name: value for name, value in asdict(self).items() if value}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Fields that a later release has stored, and this one does not know, are left out: the two
        run side by side during an upgrade."""
        return cls(**_known(cls, stored))


def _known(kind: type[Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """What `stored` holds of the fields of a dataclass."""
    return {one.name: stored[one.name] for one in fields(kind) if one.name in stored}


def _configuration(stored: Mapping[str, Any] | None) -> Configuration | None:
    return Configuration(**_known(Configuration, stored)) if stored else None


@dataclass(frozen=True)
class ApplyConfigDetails(Details):
    """Without any of these it is the branch's roles and databases that have changed."""

    # The branch that a reassigned endpoint leaves.
    from_branch_id: str | None = None
    # The configuration to go back to, should Postgres refuse the new one.
    before: Configuration | None = None
    # The new one, once the endpoint has gone back: what a retry applies.
    wanted: Configuration | None = None

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        nested = {name: _configuration(stored.get(name)) for name in ("before", "wanted")}
        return cls(**_known(cls, {**stored, **nested}))

    @property
    def may_restart(self) -> bool:
        """Whether the compute may have to stop: for other settings, or on another branch."""
        return self.before is not None or self.from_branch_id is not None


@dataclass(frozen=True)
class CreateBranchDetails(Details):
    """Without these the branch is made of its parent."""

    # The branch whose data it gets: a snapshot's, or any that its own is replaced by.
    source_branch_id: str | None = None
    # Where it is replaced, the branch that has its data of before from then on.
    kept_as: str | None = None


@dataclass(frozen=True)
class SuspendComputeDetails(Details):
    # Only where nobody has come since the endpoint was found idle.
    if_idle: bool = False


@dataclass(frozen=True)
class CheckAvailabilityDetails(Details):
    # Only whether the compute, which answered no look, answers now; one that does not is ended.
    was_silent: bool = False
