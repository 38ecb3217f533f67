"""`/projects/{project_id}/branches/{branch_id}/history`, `history/resolve` and `time_travel`, with
the fields of their responses."""

from datetime import UTC, datetime
from typing import Any

from ninja import Query, Schema
from pydantic import Field

from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.fields import Moment
from controlplane.api.http.routing import Router
from controlplane.api.requests.snapshots import MomentQuery, TimeTravel
from controlplane.api.responses.endpoints import EndpointAndOperations
from controlplane.api.schemas import once_read
from controlplane.history import time_travel
from controlplane.models import SchemaReading
from controlplane.services import branches, schemas
from controlplane.services.rules import history
from controlplane.services.rules.history import History, lsn_text

router = Router(tags=["branches"])
AT = "2026-01-31T12:00:00.123456Z"


class HistoryBase(Schema):
    at: Moment = Field(description="The moment that the base copy shows", examples=[AT])
    lsn: str = Field(description="The same as a position in the log", examples=["0/1A2B3C4D"])
    bytes: int = Field(description="Its size, as if it shared no blocks", examples=[31457280])


class HistoryGap(Schema):
    since: Moment = Field(
        description="The last moment before the gap that can be recovered", examples=[AT]
    )
    until: Moment | None = Field(
        None,
        description="The first moment after the gap; absent while there is none",
        examples=[AT],
    )
    reason: str = Field(description="Why the log is missing", examples=["log lost"])


class HistoryCommits(Schema):
    since: Moment = Field(description="The begin of the span", examples=[AT])
    seconds: int = Field(description="The length of the span", examples=[60])
    count: int = Field(description="How many transactions were committed in it", examples=[12])


class HistoryRestore(Schema):
    at: Moment = Field(description="When the branch's data was replaced", examples=[AT])


class HistoryRemoval(Schema):
    """A commit that removed files of tables or indexes: DROP, TRUNCATE, or a rewrite such as
    VACUUM FULL."""

    at: Moment = Field(description="When it was committed", examples=[AT])
    lsn: str = Field(
        description="Where its record begins: a branch of this position has the tables",
        examples=["0/1A2B3C4D"],
    )
    files: int = Field(description="How many tables and indexes lost their files", examples=[2])


class HistoryOut(Schema):
    """What is kept of a branch's past."""

    retention_seconds: int = Field(
        description="The project's `history_retention_seconds`", examples=[86400]
    )
    earliest: Moment | None = Field(
        None,
        description="The first moment that can be recovered; absent without history",
        examples=[AT],
    )
    latest: Moment | None = Field(
        None, description="The last moment that can be recovered", examples=[AT]
    )
    copied_at: Moment | None = Field(
        None,
        description="All that was committed until then is also off the host; absent without a "
        "store, or as long as nothing is in it",
        examples=[AT],
    )
    lost_seconds: float | None = Field(
        None,
        description="If the branch was restored from the store because its host was lost: of how "
        "many seconds before that commits may be lost; 0 if none are",
        examples=[3.2],
    )
    gaps: list[HistoryGap] = Field(description="Times that cannot be recovered", examples=[[]])
    bases: list[HistoryBase] = Field(description="The base copies, the oldest first", examples=[[]])
    commits: list[HistoryCommits] = Field(
        description="When transactions were committed; spans without any are left out",
        examples=[[]],
    )
    commits_until: Moment | None = Field(
        None,
        description="All commits until then are in `commits`. Later ones of a running compute are "
        "read when a moment is resolved, or when a segment of its log is complete",
        examples=[AT],
    )
    restores: list[HistoryRestore] = Field(
        description="When the branch's data was replaced", examples=[[]]
    )
    removals: list[HistoryRemoval] = Field(
        description="The last commits that removed tables or indexes", examples=[[]]
    )
    log_bytes: int = Field(description="Bytes of write-ahead log", examples=[16777216])
    base_bytes: int = Field(
        description="Bytes of the base copies, as if they shared no blocks", examples=[31457280]
    )
    disk_bytes: int = Field(
        description="Bytes of the disk that log and base copies take, which count as storage",
        examples=[17825792],
    )


class HistoryCommit(Schema):
    at: Moment = Field(description="When it was committed", examples=[AT])
    lsn: str = Field(description="Where its record begins in the log", examples=["0/1A2B3C4D"])


class HistoryMomentBase(Schema):
    at: Moment = Field(description="The moment that the base copy shows", examples=[AT])
    lsn: str = Field(description="The same as a position in the log", examples=["0/1A2B3C4D"])


class HistoryMoment(Schema):
    """What a past moment of a branch names."""

    branch_id: str
    timestamp: Moment | None = Field(
        None, description="The moment of the request, if it named a time", examples=[AT]
    )
    lsn: str = Field(
        description="The position in the log up to which it is replayed", examples=["0/1A2B3C4D"]
    )
    last_commit: HistoryCommit | None = Field(
        None, description="The last commit that belongs to the moment; absent if there is none"
    )
    next_commit: HistoryCommit | None = Field(
        None, description="The first commit after the moment; absent if there is none yet"
    )
    base: HistoryMomentBase = Field(description="The base copy that recovery begins with")
    replay_bytes: int = Field(description="Bytes of log to replay", examples=[1048576])


class ResolvedMoment(Schema):
    moment: HistoryMoment = Field(description="What the moment names")


class BranchHistory(Schema):
    history: HistoryOut = Field(description="What is kept of the branch's past")


@router.get(
    "/projects/{project_id}/branches/{branch_id}/history",
    response=BranchHistory,
    exclude_none=True,
    summary="Get a branch's history",
    description="Which past moments of the branch can be recovered, and what is kept for that.",
)
def get_project_branch_history(
    request: AuthenticatedRequest, project_id: str, branch_id: str
) -> dict[str, Any]:
    branch = branches.get_branch(request.auth, project_id, branch_id)
    return {"history": history_out(history.history_of(branch))}


@router.post(
    "/projects/{project_id}/branches/{branch_id}/time_travel",
    response={201: EndpointAndOperations},
    exclude_none=True,
    summary="Read a past moment",
    description="Creates an endpoint on a copy of the branch as it was at the moment. It has the "
    "branch's present passwords, or new ones if the branch is protected: `connection_uri` with its "
    "`endpoint_id` returns how to connect. Transactions are read-only unless a client requests "
    "otherwise. No list contains the endpoint, and it is deleted once it has been suspended.",
)
def travel_in_time(
    request: AuthenticatedRequest, project_id: str, branch_id: str, body: TimeTravel
) -> tuple[int, dict[str, Any]]:
    created = time_travel.travel(request.auth, project_id, branch_id, body.moment)
    return 201, {"endpoint": created.endpoint, "operations": created.operations}


@router.get(
    "/projects/{project_id}/branches/{branch_id}/history/resolve",
    response=ResolvedMoment,
    exclude_none=True,
    summary="Resolve a past moment",
    description="The commits around a moment, and how much log a branch of the moment replays. "
    "Nothing is created.",
)
def resolve_project_branch_moment(
    request: AuthenticatedRequest, project_id: str, branch_id: str, query: Query[MomentQuery]
) -> dict[str, Any]:
    def begin() -> list[SchemaReading]:
        return [schemas.begin_resolving(request.auth, project_id, branch_id, query.moment)]

    (answer,) = once_read(request, begin)
    found = schemas.moment_in(answer)
    return {"moment": {"branch_id": branch_id, "timestamp": query.timestamp, **found}}


def history_out(history: History) -> dict[str, object]:
    bases = [base for chain in history.chains for base in chain.bases]
    return {
        "retention_seconds": history.branch.project.history_retention_seconds,
        "earliest": history.earliest,
        "latest": history.latest,
        "copied_at": history.copied_at,
        "lost_seconds": history.branch.lost_seconds,
        "gaps": history.gaps,
        "bases": [
            {
                "at": datetime.fromisoformat(base["at"]),
                "lsn": lsn_text(base["lsn"]),
                "bytes": base["bytes"],
            }
            for base in bases
        ],
        "commits": [
            {"since": datetime.fromtimestamp(begin, UTC), "seconds": chain.commit_span, "count": n}
            for chain in history.chains
            for begin, n in chain.commits
        ],
        "commits_until": history.commits_until,
        "restores": [{"at": at} for at in history.restores],
        "removals": [
            {
                "at": datetime.fromisoformat(one["at"]),
                "lsn": lsn_text(one["lsn"]),
                "files": one["files"],
            }
            for chain in history.chains
            for one in chain.removals
        ],
        "log_bytes": sum(chain.log_bytes for chain in history.chains),
        "base_bytes": sum(base["bytes"] for base in bases),
        "disk_bytes": sum(chain.disk_bytes for chain in history.chains),
    }
