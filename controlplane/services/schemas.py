"""The schema of a branch's database, the differences between the schemas of two branches, what a
past moment of a branch names, and the logs of an endpoint.

The worker of the branch's host reads them. The caller, such as `api.schemas`, begins the
readings, waits until they have ended, and takes their results.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from controlplane import clock
from controlplane.compute.host.accounts import limit_command
from controlplane.compute.pooler import RESET
from controlplane.models import (
    UNFINISHED,
    Account,
    Action,
    Branch,
    BranchState,
    Endpoint,
    EndpointState,
    Operation,
    Project,
    SchemaFormat,
    SchemaReading,
)
from controlplane.operations.engine.scheduling import HostAway
from controlplane.operations.queue.jobs import enqueue_reading
from controlplane.operations.rounds.idleness import timeout_of
from controlplane.services.branches import find_branch
from controlplane.services.catalog import find_database
from controlplane.services.endpoints import find_endpoint
from controlplane.services.errors import Locked, Unprocessable
from controlplane.services.projects import find_project
from controlplane.services.rules.history import PRESENT, MomentSpec, PastMoment

LATE_PAST = (
    "the moment was not recovered in time, as too much log is to be replayed or the host is busy: "
    "try again, or create a branch of the moment and read its schema"
)
# Seconds and bytes that a comparison may take, and lines that its result may have.
COMPARISON_TIMEOUT, COMPARISON_MEMORY_BYTES, MAX_COMPARISON_LINES = 10, 512 << 20, 50_000


class BranchBeingMade(Unprocessable):
    """The branch has no data yet; `operation` creates it."""

    def __init__(self, operation: Operation) -> None:
        super().__init__("branch not ready yet")
        self.operation = operation


def begin_resolving(
    account: Account, project_id: str, branch_id: str, moment: MomentSpec
) -> SchemaReading:
    """Request a reading of the commits around the moment. Raises NotFound, Unprocessable,
    HostAway."""
    project = find_project(account, project_id)
    branch = find_branch(project, branch_id)
    past = moment.of(branch)
    if past is None:
        raise Unprocessable("send timestamp or lsn", fields=["timestamp", "lsn"])
    return _enqueued(project, branch, past, format=SchemaFormat.MOMENT)


def begin_reading(
    account: Account,
    project_id: str,
    branch_id: str,
    *,
    database_name: str,
    wanted: str,
    moment: MomentSpec = PRESENT,
) -> list[SchemaReading]:
    """Request a reading of a schema. `wanted` is a SchemaFormat. Raises NotFound, BranchBeingMade,
    Unprocessable, HostAway."""
    project = find_project(account, project_id)
    return [_begin(project, find_branch(project, branch_id), database_name, wanted, moment)]


def begin_comparison(
    account: Account,
    project_id: str,
    branch_id: str,
    *,
    base_branch_id: str | None,
    database_name: str,
    base_moment: MomentSpec = PRESENT,
    moment: MomentSpec = PRESENT,
) -> list[SchemaReading]:
    """Request readings of the schemas of the base branch and of the branch, in this order. The base
    is the parent by default, or for a past moment of the base a root branch itself.

    Raises NotFound, BranchBeingMade, Unprocessable, HostAway.
    """
    project = find_project(account, project_id)
    branch = find_branch(project, branch_id)
    base_id = base_branch_id or branch.parent_id
    if base_id is None and base_moment.of(branch):
        base_id = branch.id
    if base_id is None:
        raise Unprocessable("the branch has no parent: name another branch in base_branch_id")
    base = find_branch(project, base_id, field="base_branch_id")
    with transaction.atomic():
        return [
            _begin(project, one, database_name, SchemaFormat.SQL, at)
            for one, at in ((base, base_moment), (branch, moment))
        ]


def begin_log_reading(
    account: Account, project_id: str, endpoint_id: str, *, source: str
) -> list[SchemaReading]:
    """Request a reading of the logs of the endpoint's branch; of one of `log_lines.SOURCES`, or ""
    for all. Raises NotFound, HostAway."""
    project = find_project(account, project_id)
    branch = find_endpoint(project, endpoint_id).branch
    return [_enqueued(project, branch, None, database_name=source, format=SchemaFormat.LOGS)]


def logs_in(answer: str) -> list[dict[str, Any]]:
    """Parse the lines in the answer of a reading of the format `logs`, the oldest first."""
    lines: list[dict[str, Any]] = json.loads(answer or "[]")
    for line in lines:
        line["at"] = line["at"] and datetime.fromisoformat(line["at"])
    return lines


def begin_session_reading(
    account: Account, project_id: str, endpoint_id: str
) -> tuple[Endpoint, SchemaReading]:
    """Request a reading of the clients' sessions in the endpoint's compute. Returns the endpoint as
    well. Raises NotFound, HostAway."""
    project = find_project(account, project_id)
    endpoint = find_endpoint(project, endpoint_id)
    reading = _enqueued(project, endpoint.branch, None, format=SchemaFormat.SESSIONS)
    return endpoint, reading


def sessions_in(answer: str) -> list[dict[str, Any]]:
    """Parse the answer of a reading of the format `sessions`. A session of the pooler that waits
    for its next transaction was last reset, and its client's statement is not known."""
    sessions: list[dict[str, Any]] = json.loads(answer or "[]")
    for one in sessions:
        for name in ("backend_start", "xact_start", "state_change"):
            one[name] = one[name] and datetime.fromisoformat(one[name])
        one["pooled"] = (one["last_statement"] or "").startswith(RESET)
        if one["pooled"]:
            one["last_statement"] = None
    return sessions


def suspends_at(endpoint: Endpoint) -> datetime | None:
    """When the endpoint will be suspended if there is no more activity; None if it will not be."""
    timeout = timeout_of(endpoint.suspend_timeout_seconds)
    if endpoint.current_state != EndpointState.ACTIVE or timeout < 0:
        return None
    times = (endpoint.last_active, endpoint.started_at, endpoint.created_at)
    return max(filter(None, times)) + timedelta(seconds=timeout)


def is_read(reading: SchemaReading) -> bool:
    """Whether the reading has ended."""
    if reading.finished_at is not None:
        return True
    return not SchemaReading.objects.filter(id=reading.id, finished_at=None).exists()


def take_readings(readings: Sequence[SchemaReading]) -> list[str]:
    """Return the schemas that were read, in the order of `readings`, and delete the readings.
    Raises Locked if one has not ended, Unprocessable if one failed."""
    ids = [reading.id for reading in readings]
    ended = {row.id: row for row in SchemaReading.objects.filter(id__in=ids)}
    SchemaReading.objects.filter(id__in=ids).delete()
    found = [ended.get(reading.id, reading) for reading in readings]
    for row in found:
        if row.finished_at is None:
            raise Locked(_late(row))
        if row.error:
            raise Unprocessable(row.error)
    return [row.answer for row in found]


def moment_in(answer: str) -> dict[str, Any]:
    """Parse the answer of a reading of the format `moment`."""
    moment: dict[str, Any] = json.loads(answer)
    for name in ("last_commit", "next_commit", "base"):
        if found := moment[name]:
            found["at"] = datetime.fromisoformat(found["at"])
    return moment


def difference(base: str, compared: str, *, database_name: str) -> str:
    """A unified diff from the schema `base` to the schema `compared`; "" if they are equal.

    Another process finds it, with a lower priority, as clients can make schemas for which this
    takes minutes. Raises Unprocessable if they differ too much for this.
    """
    limits = limit_command(memory=COMPARISON_MEMORY_BYTES, file_size=0)
    command = [*limits, "timeout", f"{COMPARISON_TIMEOUT}", "nice", "diff", "--text", "--unified"]
    command += [f"--label={side}/{database_name}" for side in "ab"]
    with open(os.memfd_create("base"), "wb", 0) as file:
        file.write(base.encode())
        done = subprocess.run(
            [*command, f"/dev/fd/{file.fileno()}", "-"],
            input=compared.encode(),
            capture_output=True,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
            pass_fds=[file.fileno()],
        )
    gave_up = done.returncode == 124 or b"memory exhausted" in done.stderr  # 124: timed out
    if gave_up or done.stdout.count(b"\n") > MAX_COMPARISON_LINES:
        raise Unprocessable(
            "the schemas differ too much to be compared here; compare the responses of GET "
            "…/schema for each"
        )
    if done.returncode > 1:
        raise RuntimeError(f"diff failed: {done.stderr.decode(errors='replace')}")
    return done.stdout.decode()


def _begin(
    project: Project, branch: Branch, database_name: str, wanted: str, moment: MomentSpec
) -> SchemaReading:
    if branch.current_state != BranchState.READY:
        makings = Operation.objects.filter(
            branch=branch, action=Action.CREATE_BRANCH, status__in=UNFINISHED
        )
        if making := makings.first():
            raise BranchBeingMade(making)
        raise Unprocessable("branch not ready yet")
    if past := moment.of(branch):
        # The database may have had this name only then.
        return _enqueued(project, branch, past, database_name=database_name, format=wanted)
    database = find_database(branch, database_name)
    if database.applied_name is None:
        # No client has used the database: it will be created by the branch's next compute. Its
        # schema is empty.
        _refuse_away(project)
        return SchemaReading(branch=branch, finished_at=clock.now())
    return _enqueued(project, branch, None, database_name=database.applied_name, format=wanted)


def _enqueued(
    project: Project, branch: Branch, past: PastMoment | None, **reading: Any
) -> SchemaReading:
    _refuse_away(project)
    if past:
        reading |= {"at_time": past.at, "at_lsn": past.lsn}
    with transaction.atomic():
        made = SchemaReading.objects.create(branch=branch, **reading)
        enqueue_reading(made, project)
    return made


def _refuse_away(project: Project) -> None:
    if project.host.is_away:
        raise HostAway(
            f'the host "{project.host_id}" does not answer, so nothing can be read there now; '
            "try again"
        )


def _late(reading: SchemaReading) -> str:
    late = f"the {reading.subject} was not read in time, as the branch is busy; try again"
    return LATE_PAST if reading.is_of_the_past else late
