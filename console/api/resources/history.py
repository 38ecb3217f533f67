"""A branch's history: its past moments, and the management API's calls for them.

Only Perch has these calls. Fields that a server does not report are empty or None."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import Annotated, Any

from console.api.fields import (
    JSONObject,
    Reader,
    Resource,
    inner,
    moment,
    number,
    objects,
    one,
    whole,
)
from console.api.resources.endpoints import Endpoint
from console.api.transport import Calls, may_be_missing

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
        at = self.at and self.at.astimezone(UTC).isoformat().replace("+00:00", "Z")
        return self.lsn or at or ""


def _timed(kind: type[Resource], time: str = "at") -> Reader:
    """Return the reader of an optional list, the oldest first. Items without a readable time are
    left out."""

    def read(data: JSONObject, name: str) -> list[Any]:
        items = objects(data, name)[-MAX_ITEMS:] if data.get(name) else []
        found = [kind.read(item) for item in items if moment(item, time)]
        return sorted(found, key=attrgetter(time))

    return read


Moment = Annotated[datetime, moment]
Amount = Annotated[int, lambda data, name: whole(data, name) or 0]


@dataclass(frozen=True)
class Base(Resource):
    at: Moment
    # Bytes, as if it shared no blocks.
    size: Annotated[int | None, "bytes"]


@dataclass(frozen=True)
class Gap(Resource):
    since: Moment
    # None while the gap lasts.
    until: datetime | None
    reason: str


@dataclass(frozen=True)
class Commits(Resource):
    """How many commits there were in a period."""

    since: Moment
    seconds: Annotated[float, lambda data, name: max(0.0, number(data, name))]
    count: Amount


@dataclass(frozen=True)
class Restore(Resource):
    at: Moment


@dataclass(frozen=True)
class Removal(Resource):
    """A commit that removed tables or indexes, and how many files they had."""

    at: Moment
    files: Amount


@dataclass(frozen=True)
class History(Resource):
    """What is kept of a branch's past. Each sequence has the oldest first."""

    # Seconds; None if the server does not say.
    retention: Annotated[int | None, "retention_seconds"]
    # None if nothing is kept.
    earliest: datetime | None
    latest: datetime | None
    bases: Annotated[Sequence[Base], _timed(Base)]
    gaps: Annotated[Sequence[Gap], _timed(Gap, "since")]
    log_bytes: Amount
    # Bytes of the disk that log and base copies take; None if the server does not say.
    disk_bytes: int | None
    commits: Annotated[Sequence[Commits], _timed(Commits, "since")]
    # All commits until then are known; None if the server does not say.
    commits_until: datetime | None
    restores: Annotated[Sequence[Restore], _timed(Restore)]
    removals: Annotated[Sequence[Removal], _timed(Removal)]
    # The last moment that has been copied off the host.
    copied_at: datetime | None


@dataclass(frozen=True)
class Commit(Resource):
    at: Moment
    lsn: str


def _commit(data: JSONObject, name: str) -> Commit | None:
    found = inner(data, name)
    return Commit.read(found) if moment(found, "at") else None


@dataclass(frozen=True)
class ResolvedMoment(Resource):
    """What a past moment stands for in a branch's history."""

    # The position up to which log is replayed.
    lsn: str
    # The last commit that is included and the first that is not. None if there is none.
    last: Annotated[Commit | None, "last_commit", _commit]
    following: Annotated[Commit | None, "next_commit", _commit]
    base: Annotated[Commit | None, _commit]
    # Bytes of log.
    to_replay: Annotated[int | None, "replay_bytes"]


class HistoryCalls(Calls):
    def of_branch(self, project_id: str, branch_id: str) -> History:
        with may_be_missing("The server does not keep the history of branches."):
            path = ("projects", project_id, "branches", branch_id, "history")
            return self._one(History, "history", *path)

    def resolve(self, project_id: str, branch_id: str, moment: PastMoment) -> ResolvedMoment:
        """Return what the moment stands for. Raises Unprocessable for one that is not in the
        history."""
        path = ("projects", project_id, "branches", branch_id, "history", "resolve")
        with may_be_missing("The server does not resolve past moments."):
            data = self.transport.get(*path, query={moment.field: moment.text}, takes_long=True)
        return ResolvedMoment.read(one(data, "moment"))

    def travel(self, project_id: str, branch_id: str, moment: PastMoment) -> Endpoint:
        """Create an endpoint that reads the branch as it was at the moment. No list contains it,
        and it is deleted once it is idle."""
        path = ("projects", project_id, "branches", branch_id, "time_travel")
        with may_be_missing("The server cannot query past moments."):
            return self._make(Endpoint, "endpoint", *path, body={moment.field: moment.text})
