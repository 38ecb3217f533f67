"""Changes the rows when a branch's data was replaced by another branch's: the branch gets the other
branch's roles and databases, and its previous data belongs to another branch.

Called by the effects and by code that gives up operations, in their transactions; callers hold the
project's lock. `compute.data.branch_data.replace` does the work on disk.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TypeVar

from controlplane import clock
from controlplane.compute.host.wal import lsn_text
from controlplane.events.changes import branch_created, branch_restored, snapshot_deleted
from controlplane.events.recording import record
from controlplane.models import (
    Action,
    Branch,
    BranchState,
    Database,
    Endpoint,
    InitSource,
    Operation,
    Role,
    Snapshot,
)
from controlplane.operations.actions.table import details_of
from controlplane.operations.details import CreateBranchDetails
from controlplane.operations.masked_data import is_to_be_masked

# The fields of a branch that describe its data.
DATA_FIELDS = (
    *("catalog_revision", "applied_catalog_revision", "catalog_mark", "logical_size"),
    "auxiliary_size",
    *("init_source", "schema_of", "state_changed_at", "updated_at"),
)

CatalogRow = TypeVar("CatalogRow", Role, Database)


def replacement_of(operation: Operation) -> CreateBranchDetails | None:
    """Return the details of an operation that replaces its branch's data; None if the operation is
    no restore."""
    if operation.action != Action.CREATE_BRANCH:
        return None
    details = details_of(operation.action, operation.details)
    assert isinstance(details, CreateBranchDetails)
    return details if details.kept_as else None


def is_replaced(branch: Branch, operations: Iterable[Operation]) -> bool:
    """Return whether one of the project's unfinished operations replaces the branch's data, or
    gives it the data that another branch had. Neither branch may be changed until that has
    ended."""
    return any(
        branch.id in (row.branch_id, details.kept_as)
        for row in operations
        if (details := replacement_of(row))
    )


def enter_replaced(operation: Operation, details: CreateBranchDetails, now: datetime) -> None:
    """Change the rows after the data was put in place.

    The operation has held the source since before the copy was made, so the API has changed none of
    the source's rows since.
    """
    branch = Branch.objects.get(id=operation.branch_id)
    source = Branch.objects.get(id=details.source_branch_id)
    kept = Branch.objects.get(id=details.kept_as)
    passwords = {role.name: role for role in branch.roles.filter(deleted_at=None)}
    _keep(branch, kept, now)
    roles = _copies(source.roles.order_by("id"), branch)
    if source.protected or is_to_be_masked(branch, source):
        _replace_passwords(roles, passwords)
    Role.objects.bulk_create(roles)
    Database.objects.bulk_create(_copies(source.databases.order_by("id"), branch))
    if not source.hidden:
        branch.parent = source
    branch.init_source, branch.schema_of = InitSource.PARENT_DATA, None
    branch.masked_as = branch.masked_as or source.masked_as
    branch.catalog_revision = source.catalog_revision
    # SQL may have changed the source, and so its rows, since the copy was made. The next start
    # reads the copy and applies everything that it lacks.
    branch.applied_catalog_revision, branch.catalog_mark = 0, ""
    # A copy has no replication slots and no temporary files.
    branch.logical_size, branch.auxiliary_size = source.logical_size, 0
    branch.last_reset_at = branch.state_changed_at = branch.updated_at = now
    if branch.ttl_interval_seconds:
        until = now.replace(microsecond=0) + timedelta(seconds=branch.ttl_interval_seconds)
        branch.expires_at = until
    branch.save(update_fields=[*DATA_FIELDS, "parent", "last_reset_at", "expires_at", "masked_as"])
    # This write makes the proxy forget the old passwords, even if the source has no role whose row
    # would notify it.
    Endpoint.objects.filter(branch=branch, deleted_at=None).update(branch=branch)
    project = operation.project
    if not kept.hidden:
        record(branch_created(project, kept, [operation]))
    at, lsn = None, ""
    if source.is_recovered_past and source.parent:
        at = source.parent_timestamp
        lsn = "" if source.parent_lsn is None else lsn_text(source.parent_lsn)
        # Its data was moved to the branch, so there is nothing to remove.
        Branch.objects.filter(id=source.id).update(deleted_at=now, updated_at=now)
        source = source.parent
    from_parent = details.from_parent
    record(
        branch_restored(
            project, branch, source, [operation], kept=kept, from_parent=from_parent, at=at, lsn=lsn
        )
    )


def give_up_replacing(operation: Operation) -> None:
    """Mark as deleted the branch that was to keep the replaced data, or delete the snapshot that
    was being taken: neither will exist. The restore's own branch stays as it was."""
    if details := replacement_of(operation):
        now = clock.now()
        Branch.objects.filter(
            id=details.kept_as, current_state=BranchState.INIT, deleted_at=None
        ).update(deleted_at=now, updated_at=now)
    elif operation.action == Action.CREATE_BRANCH:
        for snapshot in Snapshot.objects.filter(data_branch=operation.branch_id):
            record(snapshot_deleted(operation.project, snapshot, [operation]))
            snapshot.delete()


def _keep(branch: Branch, kept: Branch, now: datetime) -> None:
    """Give `kept` everything that the branch had: fields, roles, databases and, if `kept` is
    visible, children."""
    kept.parent_id = branch.parent_id
    kept.init_source, kept.schema_of_id = branch.init_source, branch.schema_of_id
    kept.masked_as = branch.masked_as
    kept.current_state = BranchState.READY
    kept.catalog_revision = branch.catalog_revision
    kept.applied_catalog_revision = branch.applied_catalog_revision
    kept.catalog_mark = branch.catalog_mark
    kept.logical_size, kept.auxiliary_size = branch.logical_size, branch.auxiliary_size
    kept.state_changed_at = kept.updated_at = now
    kept.save(update_fields=[*DATA_FIELDS, "parent", "current_state", "masked_as"])
    Role.objects.filter(branch=branch).update(branch=kept)
    Database.objects.filter(branch=branch).update(branch=kept)
    if not kept.hidden:
        children = Branch.objects.filter(parent=branch, deleted_at=None).exclude(id=kept.id)
        children.update(parent=kept)


def _replace_passwords(roles: Iterable[Role], before: Mapping[str, Role]) -> None:
    """Replace the passwords of a protected source, because a copy must not give access to the
    original: each role gets the password that the branch's role of this name had, or none."""
    for role in roles:
        had = before.get(role.name)
        role.verifier = had.verifier if had else ""
        role.encrypted_password = had.encrypted_password if had else ""
        role.password_is_newer = True


def _copies(rows: Iterable[CatalogRow], branch: Branch) -> list[CatalogRow]:
    """Return copies of the rows, as new unsaved rows of the branch."""
    copies = list(rows)
    for row in copies:
        row.pk, row.branch = None, branch
    return copies
