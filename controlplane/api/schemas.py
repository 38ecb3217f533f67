"""`/projects/{project_id}/branches/{branch_id}/schema` and `compare_schema`, and
`/projects/{project_id}/endpoints/{endpoint_id}/logs` and `sessions`.

A worker reads the answer, which may take seconds, and the branch may still be being made. The
request waits for both, holds no database connection meanwhile, and counts as one that only waits.
"""

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from ninja import Query

from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.listening import READINGS, waiting_for
from controlplane.api.http.request_limits import only_waiting
from controlplane.api.http.routing import Router
from controlplane.api.operations import await_end
from controlplane.api.requests.snapshots import ComparisonQuery, LogsQuery, SchemaQuery
from controlplane.api.responses.endpoints import (
    BranchSchema,
    EndpointLogs,
    EndpointSessions,
    SchemaComparison,
)
from controlplane.models import SchemaReading
from controlplane.services import schemas

router = Router(tags=["branches"])

# Seconds after which a request stops waiting; a reading of logs waits for no other work.
ANSWER_TIMEOUT, LOGS_TIMEOUT = 60.0, 10.0


@router.get(
    "/projects/{project_id}/branches/{branch_id}/schema",
    response=BranchSchema,
    summary="Get a database's schema",
    description="The statements that create the schema (`sql`), or its tables (`json`). A "
    "suspended compute is started for the time that this takes. The branch does not "
    "need an endpoint.",
)
def get_project_branch_schema(
    request: AuthenticatedRequest, project_id: str, branch_id: str, query: Query[SchemaQuery]
) -> dict[str, Any]:
    def begin() -> list[SchemaReading]:
        return schemas.begin_reading(
            request.auth,
            project_id,
            branch_id,
            database_name=query.db_name,
            wanted=query.format,
            moment=query.moment,
        )

    (answer,) = once_read(request, begin)
    if query.format == "json":
        return {"json": {"tables": json.loads(answer or "[]")}}
    return {"sql": answer}


@router.get(
    "/projects/{project_id}/branches/{branch_id}/compare_schema",
    response=SchemaComparison,
    summary="Compare the schemas of two branches",
    description="A unified diff from the base branch's schema to the branch's. The base branch "
    "is the parent by default. The diff is empty if the schemas are equal.",
)
def get_project_branch_schema_comparison(
    request: AuthenticatedRequest, project_id: str, branch_id: str, query: Query[ComparisonQuery]
) -> dict[str, Any]:
    def begin() -> list[SchemaReading]:
        return schemas.begin_comparison(
            request.auth,
            project_id,
            branch_id,
            base_branch_id=query.base_branch_id,
            database_name=query.db_name,
            base_moment=query.base_moment,
            moment=query.moment,
        )

    base, compared = once_read(request, begin)
    return {"diff": schemas.difference(base, compared, database_name=query.db_name)}


@router.get(
    "/projects/{project_id}/endpoints/{endpoint_id}/logs",
    response=EndpointLogs,
    tags=["endpoints"],
    summary="List the last lines of an endpoint's logs",
    description="What the endpoint's Postgres and PgBouncer have logged on its branch, the oldest "
    "line first, also while the endpoint is suspended. Perch keeps about ten megabytes of each. "
    "Statements that may hold a password are not shown.",
)
def list_project_endpoint_logs(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str, query: Query[LogsQuery]
) -> dict[str, Any]:
    def begin() -> list[SchemaReading]:
        source = query.source or ""
        return schemas.begin_log_reading(request.auth, project_id, endpoint_id, source=source)

    (answer,) = once_read(request, begin, timeout=LOGS_TIMEOUT)
    return {"logs": schemas.logs_in(answer)[-query.limit :]}


@router.get(
    "/projects/{project_id}/endpoints/{endpoint_id}/sessions",
    response=EndpointSessions,
    tags=["endpoints"],
    summary="List the sessions in an endpoint's compute",
    description="What keeps the endpoint active: its clients' sessions, with the last statement "
    "of each, and when the endpoint will be suspended if there is no more activity. Reading this "
    "is no activity. A suspended endpoint has no sessions.",
)
def list_project_endpoint_sessions(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str
) -> dict[str, Any]:
    endpoint, reading = schemas.begin_session_reading(request.auth, project_id, endpoint_id)
    (answer,) = once_read(request, lambda: [reading], timeout=LOGS_TIMEOUT)
    return {
        "sessions": schemas.sessions_in(answer),
        "last_active": endpoint.last_active,
        "suspends_at": schemas.suspends_at(endpoint),
    }


def once_read(
    request: AuthenticatedRequest,
    begin: Callable[[], list[SchemaReading]],
    *,
    timeout: float = ANSWER_TIMEOUT,
) -> list[str]:
    """The results of the readings that `begin` starts, within `timeout` seconds. Raises
    TooManyRequests, Locked, Unprocessable and what `begin` raises."""
    deadline = time.monotonic() + timeout
    readings = _begin_readings(request, begin, deadline)
    with ExitStack() as waiting:
        waiters = [
            waiting.enter_context(waiting_for(READINGS, str(reading.id))) for reading in readings
        ]
        for reading, waiter in zip(readings, waiters, strict=True):
            # Check before waiting: if the reading ended before the waiter existed, no
            # notification will come.
            while not schemas.is_read(reading):
                with only_waiting(request, request.auth.id):
                    goes_on = waiter.wait(deadline - time.monotonic())
                if not goes_on:
                    break
    return schemas.take_readings(readings)


def _begin_readings(
    request: AuthenticatedRequest, begin: Callable[[], list[SchemaReading]], deadline: float
) -> list[SchemaReading]:
    """The readings that `begin` returns, called again until every branch has its data. Raises
    BranchBeingMade if a branch has none by the deadline, and TooManyRequests."""
    while True:
        try:
            return begin()
        except schemas.BranchBeingMade as unfinished:
            if not await_end(request, unfinished.operation, deadline).is_finished:
                raise
