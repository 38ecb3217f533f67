"""The event of each kind of change, with its summary: one function for each kind, which the code
that makes the change calls. These functions write nothing: see `recording.record`."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from controlplane.actors import Actor
from controlplane.events.recording import (
    Changes,
    fields_of,
    happened,
    made_with,
    names_of,
    of_branch,
    of_endpoint,
    of_operations,
    of_project,
)
from controlplane.events.types import EventType
from controlplane.models import (
    ATTRIBUTES,
    Action,
    ApiKey,
    Branch,
    Endpoint,
    EndpointState,
    Event,
    Host,
    Operation,
    OperationStatus,
    Project,
    Snapshot,
)

REQUESTED: Mapping[EventType, str] = {
    EventType.ENDPOINT_START_REQUESTED: "A start",
    EventType.ENDPOINT_SUSPEND_REQUESTED: "A suspend",
    EventType.ENDPOINT_RESTART_REQUESTED: "A restart",
}
CREATIONS = (Action.CREATE_TIMELINE, Action.CREATE_BRANCH)
ENDED: Mapping[str, EventType] = {
    OperationStatus.FINISHED: EventType.OPERATION_FINISHED,
    OperationStatus.FAILED: EventType.OPERATION_FAILED,
    OperationStatus.CANCELLED: EventType.OPERATION_CANCELLED,
}


def project_created(project: Project, operations: Iterable[Operation]) -> Event:
    made = made_with(name=project.name, region_id=project.region_id, pg_version=project.pg_version)
    summary = f'The project "{project.name}" was created'
    return of_project(EventType.PROJECT_CREATED, project, summary, operations, made)


def project_updated(
    project: Project, changes: Changes, operations: Iterable[Operation] = ()
) -> Event:
    summary = f'The project "{project.name}" was changed: {names_of(changes)}'
    return of_project(EventType.PROJECT_UPDATED, project, summary, operations, changes)


def project_deleted(project: Project, operations: Iterable[Operation]) -> Event:
    summary = f'The project "{project.name}" was deleted with everything in it'
    if project.recoverable_until is not None:
        until = project.recoverable_until.strftime("%Y-%m-%d %H:%M UTC")
        summary = f'The project "{project.name}" was deleted; it can be recovered until {until}'
    return of_project(EventType.PROJECT_DELETED, project, summary, operations)


def project_recovered(project: Project) -> Event:
    summary = f'The project "{project.name}" was recovered with everything in it'
    return of_project(EventType.PROJECT_RECOVERED, project, summary, ())


def project_removed(project: Project, operations: Iterable[Operation]) -> Event:
    """A deleted project can no longer be recovered: its time is over, the account has deleted more
    projects than its plan keeps, or the disk space is needed."""
    summary = f'The deleted project "{project.name}" can no longer be recovered'
    return of_project(EventType.PROJECT_REMOVED, project, summary, operations)


def branch_created(project: Project, branch: Branch, operations: Iterable[Operation]) -> Event:
    made = made_with(
        name=branch.name,
        parent_id=branch.parent_id,
        protected=branch.protected or None,
        init_source=branch.init_source if branch.schema_of_id else None,
        schema_of=branch.schema_of_id,
        expires_at=time_text(branch.expires_at),
    )
    summary = f'The branch "{branch.name}" was created'
    return of_branch(EventType.BRANCH_CREATED, project, branch, summary, operations, made)


def branch_updated(project: Project, branch: Branch, changes: Changes) -> Event:
    summary = f'The branch "{branch.name}" was changed: {names_of(changes)}'
    return of_branch(EventType.BRANCH_UPDATED, project, branch, summary, (), changes)


def branch_expired(project: Project, branch: Branch, operations: Iterable[Operation]) -> Event:
    summary = f'The branch "{branch.name}" has expired and is being deleted'
    return of_branch(EventType.BRANCH_EXPIRED, project, branch, summary, operations)


def branch_deletion_requested(
    project: Project, branch: Branch, operations: Iterable[Operation]
) -> Event:
    summary = f'Deletion of the branch "{branch.name}" was requested'
    kind = EventType.BRANCH_DELETE_REQUESTED
    return of_branch(kind, project, branch, summary, operations)


def branch_deleted(operation: Operation, branch: Branch) -> Event:
    summary = f'The branch "{branch.name}" was deleted'
    project = operation.project
    return of_branch(EventType.BRANCH_DELETED, project, branch, summary, [operation])


def history_copy_behind(project: Project, branch: Branch) -> Event:
    summary = f'The copy of the history of the branch "{branch.name}" in the store is behind'
    return of_branch(EventType.HISTORY_COPY_BEHIND, project, branch, summary)


def history_copy_caught_up(project: Project, branch: Branch) -> Event:
    summary = f'The history of the branch "{branch.name}" is completely in the store again'
    return of_branch(EventType.HISTORY_COPY_CAUGHT_UP, project, branch, summary)


def branch_restore_requested(
    project: Project,
    branch: Branch,
    source: Branch,
    operations: Iterable[Operation],
    *,
    from_parent: bool,
    at: datetime | None = None,
    lsn: str = "",
) -> Event:
    """`at` or `lsn` is the past moment of the source; there is neither for the present. With
    `from_parent`, it is a reset."""
    goal = f'A restore of the branch "{branch.name}" {_goal(branch, source, at, lsn)}'
    if from_parent:
        goal = f'A reset of the branch "{branch.name}" from its parent "{source.name}"'
    summary = f"{goal} was requested"
    kind = EventType.BRANCH_RESTORE_REQUESTED
    return of_branch(kind, project, branch, summary, operations)


def branch_restored(
    project: Project,
    branch: Branch,
    source: Branch,
    operations: Iterable[Operation],
    *,
    kept: Branch,
    from_parent: bool,
    at: datetime | None = None,
    lsn: str = "",
) -> Event:
    """`kept` is the branch that has the replaced data. It is hidden if the caller did not ask to
    keep that data. `from_parent`, `at` and `lsn` are as in `branch_restore_requested`."""
    summary = f'The branch "{branch.name}" was restored {_goal(branch, source, at, lsn)}'
    if from_parent:
        summary = f'The branch "{branch.name}" was reset from its parent "{source.name}"'
    made = made_with(
        source_branch_id=None if source.hidden else source.id,
        source_timestamp=at.isoformat() if at else None,
        source_lsn=lsn or None,
        preserved_as=None if kept.hidden else kept.id,
    )
    return of_branch(EventType.BRANCH_RESTORED, project, branch, summary, operations, made)


def history_gap(branch: Branch, since: datetime, reason: str) -> Event:
    summary = f'The history of the branch "{branch.name}" has a gap: {reason}'
    made = made_with(since=since.isoformat(timespec="seconds"))
    return of_branch(EventType.HISTORY_GAP, branch.project, branch, summary, (), made)


def history_trimmed(branch: Branch, why: str) -> Event:
    summary = f'The oldest history of the branch "{branch.name}" was removed: {why}'
    return of_branch(EventType.HISTORY_TRIMMED, branch.project, branch, summary)


def project_host_lost(project: Project, lost: Host, operations: Iterable[Operation]) -> Event:
    summary = (
        f'The host "{lost.id}" of the project "{project.name}" was lost; the project is restored '
        f'on the host "{project.host_id}"'
    )
    changes = {"host": {"from": lost.id, "to": project.host_id}}
    return of_project(EventType.PROJECT_HOST_LOST, project, summary, operations, changes)


def history_lost(
    operation: Operation,
    branch: Branch,
    *,
    until: str,
    last_commit_at: str | None,
    lost_seconds: float,
    shortfall: str,
) -> Event:
    """`until` and `last_commit_at` are times in ISO 8601; `shortfall` says why commits may be lost,
    if that is known."""
    what = "nothing was lost"
    if lost_seconds:
        what = f"commits of {lost_seconds:.1f} s may be lost" + (shortfall and f", as {shortfall}")
    summary = (
        f'The branch "{branch.name}" was restored from the store, as its host was lost, with all '
        f"commits until {until}: {what}"
    )
    made = made_with(
        restored_until=until, last_commit_at=last_commit_at, lost_seconds=round(lost_seconds, 3)
    )
    return of_branch(EventType.HISTORY_LOST, operation.project, branch, summary, [operation], made)


def durability_reduced(project: Project, branch: Branch, why: str) -> Event:
    summary = f'Commits on the branch "{branch.name}" do not wait for a second host: {why}'
    return of_branch(EventType.DURABILITY_REDUCED, project, branch, summary)


def durability_restored(project: Project, branch: Branch, host: str) -> Event:
    summary = f'Commits on the branch "{branch.name}" wait for the host "{host}" again'
    return of_branch(EventType.DURABILITY_RESTORED, project, branch, summary)


def snapshot_created(
    project: Project, snapshot: Snapshot, operations: Iterable[Operation]
) -> Event:
    made = made_with(
        id=snapshot.id,
        name=snapshot.name,
        expires_at=snapshot.expires_at and snapshot.expires_at.isoformat(timespec="seconds"),
    )
    summary = f'The snapshot "{snapshot.name}" was taken'
    kind = EventType.SNAPSHOT_CREATED
    return of_branch(kind, project, snapshot.source_branch_id, summary, operations, made)


def snapshot_updated(project: Project, snapshot: Snapshot, changes: Changes) -> Event:
    summary = f'The snapshot "{snapshot.name}" was changed: {names_of(changes)}'
    return of_branch(
        EventType.SNAPSHOT_UPDATED, project, snapshot.source_branch_id, summary, (), changes
    )


def snapshot_deleted(
    project: Project, snapshot: Snapshot, operations: Iterable[Operation]
) -> Event:
    summary = f'The snapshot "{snapshot.name}" was deleted'
    return of_branch(
        EventType.SNAPSHOT_DELETED, project, snapshot.source_branch_id, summary, operations
    )


def snapshot_expired(
    project: Project, snapshot: Snapshot, operations: Iterable[Operation]
) -> Event:
    summary = f'The snapshot "{snapshot.name}" has expired'
    return of_branch(
        EventType.SNAPSHOT_EXPIRED, project, snapshot.source_branch_id, summary, operations
    )


def endpoint_created(
    project: Project, endpoint: Endpoint, operations: Iterable[Operation]
) -> Event:
    made = made_with(
        branch_id=endpoint.branch_id,
        **{
            name: getattr(endpoint, name)
            for name, attribute in ATTRIBUTES.items()
            if attribute.in_creation_event
        },
    )
    summary = f"The endpoint {endpoint.id} was created"
    return of_endpoint(EventType.ENDPOINT_CREATED, project, endpoint, summary, operations, made)


def endpoint_updated(
    project: Project, endpoint: Endpoint, changes: Changes, operations: Iterable[Operation]
) -> Event:
    summary = f"The endpoint {endpoint.id} was changed: {names_of(changes)}"
    return of_endpoint(EventType.ENDPOINT_UPDATED, project, endpoint, summary, operations, changes)


def endpoint_went_back(operation: Operation, endpoint: Endpoint, changes: Changes) -> Event:
    summary = f"The endpoint {endpoint.id} has its previous settings again: {names_of(changes)}"
    project = operation.project
    return of_endpoint(EventType.ENDPOINT_UPDATED, project, endpoint, summary, [operation], changes)


def endpoint_returned(operation: Operation, endpoint: Endpoint, *, left: str) -> Event:
    """The endpoint is back on the branch that it was reassigned from. `left` is the id of the
    branch that it was reassigned to."""
    summary = f"The endpoint {endpoint.id} went back to its previous branch"
    changes = {"branch_id": {"from": left, "to": endpoint.branch_id}}
    return of_endpoint(
        EventType.ENDPOINT_UPDATED, operation.project, endpoint, summary, [operation], changes
    )


def endpoint_deleted(
    project: Project, endpoint: Endpoint, operations: Iterable[Operation] = ()
) -> Event:
    summary = f"The endpoint {endpoint.id} was deleted"
    return of_endpoint(EventType.ENDPOINT_DELETED, project, endpoint, summary, operations)


def endpoint_requested(
    kind: EventType, project: Project, endpoint: Endpoint, operations: Iterable[Operation]
) -> Event:
    summary = f"{REQUESTED[kind]} of the endpoint {endpoint.id} was requested"
    return of_endpoint(kind, project, endpoint, summary, operations)


def endpoint_entered(
    project: Project,
    endpoint: Endpoint,
    state: EndpointState,
    *,
    operations: Iterable[Operation] = (),
    reason: str = "",
    actor: Actor | None = None,
) -> Event:
    """The endpoint changes to `state`, active or idle. Its row still has the former state."""
    is_active = state == EndpointState.ACTIVE
    summary = f"The endpoint {endpoint.id} became {state.value}" + (reason and f": {reason}")
    return of_endpoint(
        EventType.ENDPOINT_ACTIVE if is_active else EventType.ENDPOINT_IDLE,
        project,
        endpoint,
        summary,
        operations,
        {"current_state": {"from": str(endpoint.current_state), "to": state.value}},
        actor=actor,
    )


def quota_exceeded(
    project: Project,
    endpoint: Endpoint,
    operations: Iterable[Operation],
    *,
    quota: str,
    words: str,
    limit: int,
    used: int,
) -> Event:
    """The endpoint is suspended because the project has used up a quota. `quota` is the name of its
    field, `words` its name in the summary; `limit` and `used` are in seconds or bytes."""
    unit = quota.rpartition("_")[2]
    summary = (
        f"The {words} quota of {limit} {unit} is used up, with {used} {unit} used: the endpoint "
        f"{endpoint.id} is suspended"
    )
    made = made_with(quota=quota, limit=limit, used=used)
    kind = EventType.QUOTA_EXCEEDED
    return of_endpoint(kind, project, endpoint, summary, operations, made)


def cancelling_requested(project: Project, operations: Sequence[Operation]) -> Event:
    """`operations` are the operation to cancel, and after it those that are cancelled with it."""
    summary = f"Cancellation of the operation {operations[0].action} was requested"
    kind = EventType.OPERATION_CANCEL_REQUESTED
    return of_operations(kind, project, operations[0], summary, operations)


def operation_retried(project: Project, first: Operation, made: Iterable[Operation]) -> Event:
    summary = f"The operation {first.action} was retried"
    return of_operations(EventType.OPERATION_RETRIED, project, first, summary, made)


def operation_ended(
    operation: Operation, status: OperationStatus, error: str | None, end: datetime
) -> Event:
    """The operation changes to `status` at `end`. Its row still has the former status."""
    words = f"{operation.action} has {status.value}"
    if status == OperationStatus.CANCELLED:
        words = f"{operation.action}{_of_new_branch(operation)} was cancelled"
    return happened(
        ENDED[status],
        summary=f"The operation {words}" + (f": {error}" if error else ""),
        account_id=operation.project.account_id,
        project=operation.project_id,
        branch=operation.branch_id,
        endpoint=operation.endpoint_id,
        operations=[operation],
        changes={"status": {"from": str(operation.status), "to": status.value}},
        operation=fields_of(operation, error, operation.duration_ms_until(end)),
    )


def _of_new_branch(operation: Operation) -> str:
    """The branch that the operation was to create, in words; "" for other operations, and for a
    branch that no list has."""
    branch = operation.branch if operation.action in CREATIONS else None
    return f' of the branch "{branch.name}"' if branch and not branch.hidden else ""


def api_key_created(key: ApiKey) -> Event:
    return happened(
        EventType.API_KEY_CREATED,
        summary=f'The API key "{key.name}" was created',
        account_id=key.account_id,
        changes=made_with(
            id=key.id,
            name=key.name,
            project_id=key.project_id,
            read_only=key.read_only or None,
            expires_at=time_text(key.expires_at),
        ),
    )


def api_key_revoked(key: ApiKey) -> Event:
    return happened(
        EventType.API_KEY_REVOKED,
        summary=f'The API key "{key.name}" was revoked',
        account_id=key.account_id,
        changes={name: {"from": value, "to": None} for name, value in _identity(key).items()},
    )


def time_text(time: datetime | None) -> str | None:
    """A time in the form that it has in `changes`."""
    return time.isoformat(timespec="seconds") if time else None


def _identity(key: ApiKey) -> dict[str, Any]:
    return {"id": key.id, "name": key.name}


def _goal(branch: Branch, source: Branch, at: datetime | None, lsn: str) -> str:
    """What a branch is restored to, in words."""
    if not (at or lsn):
        return f"from {_source(source)}"
    moment = f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if at else f"LSN {lsn}"
    return f"to {moment}" + ("" if source.id == branch.id else f" of {_source(source)}")


def _source(source: Branch) -> str:
    return "a snapshot" if source.hidden else f'the branch "{source.name}"'
