"""What an action needs to know beyond the operation's rows: one frozen class for each action that
needs something. The services write it and it is stored as JSON. Actions, effects and the proxy
read it, always through `details_of`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from controlplane.models import APPLIED, Configuration


@dataclass(frozen=True)
class Details:
    """The details of an action that needs only the rows."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields whose values differ from the class's defaults."""
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
    return {name: stored[name] for name in APPLIED if name in stored} if stored else None


@dataclass(frozen=True)
class ApplyConfigDetails(Details):
    """If `before` and `from_branch_id` are not set, the branch's roles and databases have
    changed."""

    # The branch that a reassigned endpoint leaves.
    from_branch_id: str | None = None
    # The configuration to go back to if Postgres refuses the new one.
    before: Configuration | None = None
    # The new configuration, once the endpoint has gone back to the old one; a retry applies it.
    wanted: Configuration | None = None
    # The time, in ISO 8601, of the last change of roles and databases that joined the operation
    # while it waited. Not set if it has only the change that it was requested for.
    changed_until: str | None = None

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        nested = {name: _configuration(stored.get(name)) for name in ("before", "wanted")}
        return cls(**_known(cls, {**stored, **nested}))

    @property
    def may_restart(self) -> bool:
        """Whether the compute may have to stop, for other settings or to run on another branch."""
        return self.before is not None or self.from_branch_id is not None


@dataclass(frozen=True)
class CreateBranchDetails(Details):
    """If none of these is set, the branch is created from its parent."""

    # The branch whose data it gets: a snapshot's, or any branch that a restore takes data from.
    source_branch_id: str | None = None
    # For a restore: the branch that keeps the data that is replaced.
    kept_as: str | None = None
    # For a restore: whether it is a reset, whose source is the branch's parent as it is now.
    from_parent: bool = False
    # The past moment of the source: a time in ISO 8601 with its zone, or a position in its log.
    at_time: str | None = None
    at_lsn: int | None = None

    @property
    def names_moment(self) -> bool:
        return self.at_time is not None or self.at_lsn is not None


@dataclass(frozen=True)
class StartComputeDetails(Details):
    # The compute is about to be stopped on the host that its project leaves, and started on the
    # other: clients that have not authenticated yet wait, and are then led there.
    announced: bool = False
    # It is being stopped there: all clients wait for this operation.
    moving: bool = False


@dataclass(frozen=True)
class SuspendComputeDetails(Details):
    # Suspend only if no client has come since the endpoint was found idle.
    if_idle: bool = False
    # Waits for the recovery of the past that a restore switches to. Until it begins, the compute
    # serves clients.
    after_recovery: bool = False


@dataclass(frozen=True)
class CheckAvailabilityDetails(Details):
    # Check only whether the compute, which did not answer when polled, answers now; if not, stop
    # it.
    was_silent: bool = False


@dataclass(frozen=True)
class RestoreFromStoreDetails(Details):
    # The host that was lost.
    lost_host: str = ""
    # Until when a compute may have run on the branch there, in ISO 8601; None if none has.
    ran_until: str | None = None
    # The number of the chain of its history that was open there, and where the log of that chain
    # ended, if nothing was written after that was known.
    chain: int | None = None
    log_end: int | None = None
    # When it last got other data, by a restore or a reset.
    reset_at: str | None = None
    # What was restored: all commits until `restored_until` are there; those of `lost_seconds` after
    # it may not be. `last_commit_at` is when the last commit of the stored log was made, if any.
    restored_until: str | None = None
    last_commit_at: str | None = None
    lost_seconds: float = 0.0
    # Why, if that is known.
    shortfall: str = ""


@dataclass(frozen=True)
class UpgradeProjectDetails(Details):
    # The major version of Postgres that the project is to have.
    to: int = 0
    # Only check that it works: the new data is made and removed.
    only_check: bool = False
    # The new data of all branches is complete and takes the place of the old. There is no way back.
    switching: bool = False


@dataclass(frozen=True)
class MoveProjectDetails(Details):
    # The host that the project is to live on.
    to: str = ""
    # The identity of that host's state directory, once all branches are complete there: the end of
    # the operation gives the project to the host only if the same directory still serves it.
    received_by: str = ""
