"""Snapshots of branches: create, list, change, delete, and restore as a new branch or over a
branch's data. Each snapshot's data is a hidden branch."""

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q

from controlplane import clock
from controlplane.events.catalog import password_reset
from controlplane.events.changes import (
    branch_created,
    snapshot_created,
    snapshot_deleted,
    snapshot_updated,
)
from controlplane.events.recording import differences, record
from controlplane.models import (
    Account,
    Branch,
    BranchState,
    Operation,
    Project,
    RequestKind,
    Snapshot,
)
from controlplane.models.reading import Reading
from controlplane.operations.engine.scheduling import schedule, unfinished
from controlplane.operations.rounds.expiry import schedule_snapshot_deletion
from controlplane.services.branches import (
    copied_catalog,
    find_branch,
    free_name,
    refuse_taken_name,
    refuse_while_busy,
)
from controlplane.services.creation import make_branch
from controlplane.services.errors import Conflict, Locked, NotFound, Unprocessable, taken_name
from controlplane.services.passwords import give_new_passwords
from controlplane.services.projects import changing_project, find_project
from controlplane.services.restoring import MAX_NAME_LENGTH, name_of_replaced, replace_data
from controlplane.services.rules import plan_limits
from controlplane.services.rules.history import PRESENT, MomentSpec

SNAPSHOTS = Reading(
    Snapshot,
    "WHERE t.project_id = %(project)s ORDER BY t.created_at DESC, t.id",
    joined=["data_branch"],
)


@dataclass(frozen=True, kw_only=True)
class SnapshotSpec:
    """What a request asks of a new snapshot; None leaves the choice to the service."""

    name: str | None = None
    slug: str | None = None
    expires_at: datetime | None = None
    # Of the branch.
    moment: MomentSpec = PRESENT


@dataclass(frozen=True, kw_only=True)
class SnapshotChanges:
    """What a request changes of a snapshot. `name` is None if it was not sent, and `sets_expiry`
    says whether `expires_at` was."""

    name: str | None = None
    sets_expiry: bool = False
    # None: it never expires.
    expires_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class SnapshotRestore:
    """What a request asks of the restore of a snapshot."""

    # The new branch's name.
    name: str | None = None
    # The branch that is replaced; by default the snapshot's source branch.
    target_branch_id: str | None = None
    # Whether to replace that branch's data now, unless `name` asks for a new branch. Otherwise the
    # new branch replaces it when that is finalized (`services.restoring`).
    finalize_restore: bool = False


def find_snapshot(project: Project, snapshot_id: str) -> Snapshot:
    """The project's snapshot with this id, with its branches. Raises NotFound."""
    found = (
        Snapshot.objects.select_related("data_branch", "source_branch")
        .filter(project=project, id=snapshot_id)
        .first()
    )
    if found is None:
        raise NotFound("snapshot not found", fields=["snapshot_id"])
    return found


def list_snapshots(account: Account, project_id: str) -> list[Snapshot]:
    """The project's snapshots, newest first. Raises NotFound."""
    project = find_project(account, project_id)
    return SNAPSHOTS.rows({"project": project}, project=project.id)


def create_snapshot(
    account: Account, project_id: str, branch_id: str, spec: SnapshotSpec
) -> tuple[Snapshot, list[Operation]]:
    """Create a snapshot of all that is committed on the branch when it is copied, or was committed
    at a past moment.

    Raises NotFound, Locked, HostFull, Unprocessable.
    """
    now = clock.now()
    _refuse_past(spec.expires_at, now)
    with changing_project(account, project_id) as project:
        branch = find_branch(project, branch_id)
        earlier = unfinished(project.id)
        refuse_while_busy(branch, earlier)
        if branch.current_state != BranchState.READY:
            raise Unprocessable("branch not ready yet")
        moment = spec.moment.of(branch)
        plan_limits.check_one_more(account, Snapshot.objects.filter(project=project))
        taken = Q(slug=spec.slug) | Q(id=spec.slug)
        if spec.slug and Snapshot.objects.filter(taken, project=project).exists():
            raise Conflict(
                f'snapshot already exists; slug:"{spec.slug}"',
                errors=[taken_name("snapshot", spec.slug, "slug")],
            )
        roles, databases = copied_catalog(branch)
        data, creation = make_branch(
            project,
            name="",
            parent=branch,
            protected=branch.protected,
            roles=roles,
            databases=databases,
            hidden=True,
            moment=moment,
        )
        at = now.strftime("%Y-%m-%d %H:%M:%S UTC")
        snapshot = Snapshot.objects.create(
            project=project,
            data_branch=data,
            source_branch=branch,
            name=spec.name or f"{branch.name} at {at}"[-MAX_NAME_LENGTH:],
            slug=spec.slug,
            created_at=now,
            expires_at=spec.expires_at,
        )
        title = f"Create snapshot {snapshot.name}"
        operations = schedule(project, [creation], RequestKind.CREATE_SNAPSHOT, title=title)
        record(snapshot_created(project, snapshot, operations))
    return snapshot, operations


def update_snapshot(
    account: Account, project_id: str, snapshot_id: str, changes: SnapshotChanges
) -> Snapshot:
    """Change the attributes that were sent. Raises NotFound, Locked, Unprocessable."""
    if changes.sets_expiry:
        _refuse_past(changes.expires_at, clock.now())
    with changing_project(account, project_id) as project:
        snapshot = find_snapshot(project, snapshot_id)
        before = _event_fields(snapshot)
        if changes.name is not None:
            snapshot.name = changes.name
        if changes.sets_expiry:
            snapshot.expires_at = changes.expires_at
        snapshot.save(update_fields=["name", "expires_at"])
        if changed := differences(before, _event_fields(snapshot)):
            record(snapshot_updated(project, snapshot, changed))
    return snapshot


def delete_snapshot(account: Account, project_id: str, snapshot_id: str) -> list[Operation]:
    """Delete the snapshot. Callers do not see it from now on. The returned operation deletes its
    data, after the operations that create it or a branch from it. Raises NotFound, Locked,
    HostAway."""
    with changing_project(account, project_id) as project:
        snapshot = find_snapshot(project, snapshot_id)
        operations = schedule_snapshot_deletion(project, snapshot)
        record(snapshot_deleted(project, snapshot, operations))
        snapshot.delete()
    return operations


def restore_snapshot(
    account: Account, project_id: str, snapshot_id: str, wanted: SnapshotRestore
) -> tuple[Branch, list[Operation]]:
    """Create a new branch from the snapshot, or replace a branch's data by the snapshot's; a new
    branch then keeps the replaced data. Returns the new branch or the branch whose data is
    replaced, and the operations.

    Raises NotFound, Conflict, Locked, HostFull, Unprocessable.
    """
    if wanted.finalize_restore and wanted.name is not None and wanted.target_branch_id is not None:
        raise Unprocessable(
            "name is not offered by this server with finalize_restore and target_branch_id: the "
            "target keeps its own name; leave one of them out",
            fields=["name"],
        )
    with changing_project(account, project_id) as project:
        snapshot = find_snapshot(project, snapshot_id)
        if snapshot.data_branch.current_state != BranchState.READY:
            raise Locked("the snapshot is still being taken; try again")
        if wanted.finalize_restore and wanted.name is None:
            branch = _target(project, snapshot, wanted.target_branch_id)
            old = name_of_replaced(branch)
            return branch, replace_data(project, branch, snapshot.data_branch, name=old)
        restores_over = None
        if wanted.target_branch_id is not None:
            restores_over = _target(project, snapshot, wanted.target_branch_id).id
        elif not wanted.finalize_restore:
            restores_over = snapshot.source_branch_id
        return _new_branch(project, snapshot, wanted.name, restores_over)


def _target(project: Project, snapshot: Snapshot, branch_id: str | None) -> Branch:
    if branch_id is not None:
        return find_branch(project, branch_id, field="target_branch_id")
    source = snapshot.source_branch
    if source is None or source.deleted_at is not None:
        raise Unprocessable(
            "the branch that the snapshot was taken of was deleted: name another one in "
            "target_branch_id, or restore it as a new branch"
        )
    return source


def _new_branch(
    project: Project, snapshot: Snapshot, name: str | None, restores_over: str | None
) -> tuple[Branch, list[Operation]]:
    if name:
        refuse_taken_name(project, name)
    roles, databases = copied_catalog(snapshot.data_branch)
    # Passwords that are known for the copy of a protected branch must not work for the original.
    is_protected = snapshot.data_branch.protected
    given = give_new_passwords(roles, store=project.store_passwords) if is_protected else []
    branch, creation = make_branch(
        project,
        name=name or free_name(project),
        parent=None,
        snapshot=snapshot.data_branch,
        protected=False,
        roles=roles,
        databases=databases,
    )
    branch.restores_over = restores_over
    branch.save(update_fields=["restores_over"])
    operations = schedule(project, [creation])
    record(branch_created(project, branch, operations))
    record(*(password_reset(project, branch, role) for role in given))
    return branch, operations


def _event_fields(snapshot: Snapshot) -> dict[str, str | None]:
    expires_at = snapshot.expires_at
    return {
        "name": snapshot.name,
        "expires_at": expires_at.isoformat(timespec="seconds") if expires_at else None,
    }


def _refuse_past(expires_at: datetime | None, now: datetime) -> None:
    if expires_at is not None and expires_at <= now:
        raise Unprocessable("expires_at is in the past", fields=["expires_at"])
