"""A branch's history: its past moments, and the management API's calls for them.

Only Perch has these calls. Fields that a server does not report are empty or None.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from console.api.fields import JSONObject, inner, moment, number, objects, one, text, whole
from console.api.resources.endpoints import Endpoint
from console.api.transport import Transport, may_be_missing

# The most items of each kind that are read of one history. No window has as many.
MAX_ITEMS = 1000


@dataclass(frozen=True)
class PastMoment:
    """What names a past moment: a time or, if `lsn` is not empty, a position in the log."""

    at: datetime | None = None
    lsn: str = ""

    @property
    def field(self) -> str:
        return "lsn" if self.lsn else "timestamp"

    @property
    def text(self) -> str:
        """The moment as the API reads it, exact to the microsecond."""
        return self.lsn or exact(self.at)


def exact(at: datetime | None) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z") if at else ""


@dataclass(frozen=True)
class Base:
    at: datetime
    lsn: str
    # Bytes, as if it shared no blocks.
    size: int | None


@dataclass(frozen=True)
class Gap:
    # None while the gap lasts.
    since: datetime
    until: datetime | None
    reason: str


@dataclass(frozen=True)
class Commits:
    """How many commits there were in a period."""

    since: datetime
    seconds: float
    count: int


@dataclass(frozen=True)
class Removal:
    """A commit that removed tables or indexes, and how many files they had."""

    at: datetime
    files: int


@dataclass(frozen=True)
class History:
    """What is kept of a branch's past. Each sequence has the oldest first."""

    # Seconds; None if the server does not say.
    retention: int | None
    # None if nothing is kept.
    earliest: datetime | None
    latest: datetime | None
    bases: Sequence[Base]
    gaps: Sequence[Gap]
    log_bytes: int
    # Bytes of the disk that log and base copies take; None if the server does not say.
    disk_bytes: int | None
    commits: Sequence[Commits]
    # All commits until then are known; None if the server does not say.
    commits_until: datetime | None
    restores: Sequence[datetime]
    removals: Sequence[Removal]
    # The last moment that has been copied off the host.
    copied_at: datetime | None

    @classmethod
    def read(cls, data: JSONObject) -> "History":
        return cls(
            retention=whole(data, "retention_seconds"),
            earliest=moment(data, "earliest"),
            latest=moment(data, "latest"),
            bases=[
                Base(at, text(item, "lsn"), whole(item, "bytes"))
                for at, item in _timed(data, "bases", "at")
            ],
            gaps=[
                Gap(since, moment(item, "until"), text(item, "reason"))
                for since, item in _timed(data, "gaps", "since")
            ],
            log_bytes=whole(data, "log_bytes") or 0,
            disk_bytes=whole(data, "disk_bytes"),
            commits=[
                Commits(since, max(0.0, number(item, "seconds")), whole(item, "count") or 0)
                for since, item in _timed(data, "commits", "since")
            ],
            commits_until=moment(data, "commits_until"),
            restores=[at for at, _ in _timed(data, "restores", "at")],
            removals=[
                Removal(at, whole(item, "files") or 0)
                for at, item in _timed(data, "removals", "at")
            ],
            copied_at=moment(data, "copied_at"),
        )


def _timed(data: JSONObject, name: str, time: str) -> list[tuple[datetime, JSONObject]]:
    """Return the items of an optional list with their times, the oldest first. Items without a
    readable time are left out."""
    items = objects(data, name)[-MAX_ITEMS:] if data.get(name) else []
    timed = [(at, item) for item in items if (at := moment(item, time))]
    return sorted(timed, key=lambda found: found[0])


@dataclass(frozen=True)
class Commit:
    at: datetime
    lsn: str

    @classmethod
    def read(cls, data: JSONObject) -> "Commit | None":
        at = moment(data, "at")
        return cls(at, text(data, "lsn")) if at else None


@dataclass(frozen=True)
class ResolvedMoment:
    """What a past moment stands for in a branch's history."""

    # The position up to which log is replayed.
    lsn: str
    # The last commit that is included and the first that is not. None if there is none.
    last: Commit | None
    following: Commit | None
    base: Commit | None
    # Bytes of log.
    to_replay: int | None

    @classmethod
    def read(cls, data: JSONObject) -> "ResolvedMoment":
        return cls(
            lsn=text(data, "lsn"),
            last=Commit.read(inner(data, "last_commit")),
            following=Commit.read(inner(data, "next_commit")),
            base=Commit.read(inner(data, "base")),
            to_replay=whole(data, "replay_bytes"),
        )


class HistoryCalls:
    """One method per call. Every method raises an `APIError` if its call fails."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def of_branch(self, project_id: str, branch_id: str) -> History:
        with may_be_missing("The server does not keep the history of branches."):
            data = self._transport.get("projects", project_id, "branches", branch_id, "history")
        return History.read(one(data, "history"))

    def resolve(self, project_id: str, branch_id: str, moment: PastMoment) -> ResolvedMoment:
        """Return what the moment stands for. Raises Unprocessable for one that is not in the
        history."""
        path = ("projects", project_id, "branches", branch_id, "history", "resolve")
        with may_be_missing("The server does not resolve past moments."):
            data = self._transport.get(*path, query={moment.field: moment.text}, takes_long=True)
        return ResolvedMoment.read(one(data, "moment"))

    def travel(self, project_id: str, branch_id: str, moment: PastMoment) -> Endpoint:
        """Create an endpoint that reads the branch as it was at the moment. No list contains it,
        and it is deleted once it is idle."""
        path = ("projects", project_id, "branches", branch_id, "time_travel")
        with may_be_missing("The server cannot query past moments."):
            data = self._transport.send("POST", *path, body={moment.field: moment.text})
        return Endpoint.read(one(data, "endpoint"))
