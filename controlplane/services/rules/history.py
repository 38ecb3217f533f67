"""What a branch's history holds, and which of its past moments a request may name.

The host's worker keeps the history and publishes its extent (`models.HistoryChain`). A request
that names a moment outside of it is refused before anything is made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from controlplane import clock
from controlplane.compute.host.wal import lsn_text as lsn_text
from controlplane.compute.host.wal import parse_lsn
from controlplane.models import Branch, EndpointState, HistoryChain
from controlplane.models.history import LEFT, REPLACED
from controlplane.models.reading import Reading
from controlplane.operations.details import CreateBranchDetails
from controlplane.services.errors import Unprocessable

# Bytes of log that a compute keeps at most until they are copied
# (`compute.settings.configuration`).
MAX_UNCOPIED_BYTES = 2 << 30
CHAINS = Reading(HistoryChain, "WHERE t.branch_id = %(branch)s ORDER BY t.number")


@dataclass(frozen=True)
class PastMoment:
    """A past moment of a branch that a request names: a time, or a position in the log."""

    at: datetime | None = None
    lsn: int | None = None

    @property
    def words(self) -> str:
        if self.at:
            return f"{self.at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
        return f"LSN {lsn_text(self.lsn or 0)}"

    def details(self, source: Branch) -> CreateBranchDetails:
        return CreateBranchDetails(
            source_branch_id=source.id,
            at_time=self.at.isoformat() if self.at else None,
            at_lsn=self.lsn,
        )


@dataclass(frozen=True)
class Gap:
    """A time of which a branch has no history."""

    since: datetime
    until: datetime | None
    reason: str


@dataclass(frozen=True)
class History:
    """What is kept of a branch's past."""

    branch: Branch
    chains: Sequence[HistoryChain]
    now: datetime

    @property
    def earliest(self) -> datetime | None:
        return self.chains[0].first_at if self.chains else None

    @property
    def latest(self) -> datetime | None:
        """The last moment that can be recovered: now, unless the last chain has ended."""
        if not self.chains:
            return None
        last = self.chains[-1]
        return last.last_at if last.ended_at else self.now

    @property
    def commits_until(self) -> datetime | None:
        """Until when the commits are known: of a running compute, those of the segments of its log
        that are complete, and all until somebody last asked for a moment; of a stopped one, all
        once its log was copied."""
        if not self.chains:
            return None
        endpoint = self.branch.endpoints.filter(deleted_at=None).first()
        copied_at, stopped_at = self.chains[-1].updated_at, endpoint and endpoint.suspended_at
        is_running = endpoint is not None and endpoint.current_state == EndpointState.ACTIVE
        is_known = not is_running and copied_at > (stopped_at or LEFT)
        return self.latest if is_known else self.chains[-1].last_at

    @property
    def copied_at(self) -> datetime | None:
        """The last moment that can be restored if the host is lost; None if there is none."""
        known = [chain.stored_at for chain in self.chains if chain.stored_at]
        return known[-1] if known else None

    @property
    def gaps(self) -> list[Gap]:
        found = []
        for number, chain in enumerate(self.chains):
            if chain.ended_at is None:
                continue
            following = self.chains[number + 1 : number + 2]
            until = following[0].first_at if following else None
            if until is None or until > chain.last_at:
                found.append(Gap(chain.last_at, until, chain.end_reason))
        return found

    @property
    def restores(self) -> list[datetime]:
        """When the branch's data was replaced."""
        return [
            chain.ended_at
            for chain in self.chains
            if chain.ended_at is not None and chain.end_reason == REPLACED
        ]

    def refuse_outside(self, moment: PastMoment, field: str) -> None:
        """Raise Unprocessable if the moment is not in the history."""
        if not self.chains:
            raise Unprocessable(
                f"the branch {self.branch.id} has no history"
                + (
                    ""
                    if self.branch.project.history_retention_seconds
                    else ": history_retention_seconds of its project is 0"
                ),
                code="NO_HISTORY",
                fields=[field],
            )
        if moment.lsn is not None:
            if not self._has_position(moment.lsn):
                self._refuse(field)
            return
        assert moment.at is not None
        if moment.at > self.now:
            raise Unprocessable(f"{field} is in the future", fields=[field])
        for chain in self.chains:
            if chain.first_at <= moment.at and (
                chain.ended_at is None or moment.at <= chain.last_at
            ):
                return
        self._refuse(field)

    def _has_position(self, lsn: int) -> bool:
        """Whether a chain may have the position. A branch that was restored had some positions
        twice; which one is meant, the host decides by its log (`history.local.moments`)."""
        following: HistoryChain | None = None
        for chain in reversed(self.chains):
            if chain.first_lsn <= lsn <= chain.last_lsn + _unpublished(chain):
                return True
            is_gap = following is not None and chain.last_lsn < lsn < following.first_lsn
            if is_gap and chain.end_reason != REPLACED:
                return False
            following = chain
        return False

    def _refuse(self, field: str) -> None:
        assert self.earliest is not None
        assert self.latest is not None
        gaps = "".join(
            f", without the time from {_text(gap.since)}"
            + (f" to {_text(gap.until)}" if gap.until else "")
            for gap in self.gaps
        )
        raise Unprocessable(
            f"{field} is outside of the branch's history, which goes from {_text(self.earliest)} "
            f"to {_text(self.latest)}{gaps}",
            code="OUTSIDE_HISTORY",
            fields=[field],
        )


@dataclass(frozen=True)
class MomentSpec:
    """A moment as a request names it: the present, if neither is given."""

    timestamp: datetime | None = None
    lsn: str | None = None
    # The names of the two fields in the request.
    fields: tuple[str, str] = ("timestamp", "lsn")

    def of(self, branch: Branch) -> PastMoment | None:
        """The moment of the branch; None if the request names none. Raises Unprocessable if the
        branch's history does not have it."""
        at_field, lsn_field = self.fields
        if self.timestamp is None and self.lsn is None:
            return None
        if self.timestamp is not None and self.lsn is not None:
            raise Unprocessable(f"send {at_field} or {lsn_field}, not both", fields=[*self.fields])
        if self.lsn is not None:
            moment, field = PastMoment(lsn=_position(self.lsn, lsn_field)), lsn_field
        else:
            moment, field = PastMoment(at=self.timestamp), at_field
        history_of(branch).refuse_outside(moment, field)
        return moment


PRESENT = MomentSpec()


def history_of(branch: Branch) -> History:
    return History(branch, CHAINS.rows(branch=branch.id), clock.now())


def _unpublished(chain: HistoryChain) -> int:
    """How many bytes of log the chain may have that its row does not show yet."""
    return MAX_UNCOPIED_BYTES if chain.ended_at is None else 0


def _position(text: str, field: str) -> int:
    try:
        return parse_lsn(text)
    except ValueError:
        raise Unprocessable(
            f'{field} is no position in the log, such as "0/1A2B3C4D"', fields=[field]
        ) from None


def _text(at: datetime) -> str:
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")
