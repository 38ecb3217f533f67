"""Moves a project to a newer major version of Postgres: the work of `upgrade_project`.

The operation holds its whole project, and its endpoints were suspended by the operations before it
in its chain. First each branch gets its new data beside the old (`compute.upgrade.major_upgrade`).
Then one transaction marks the operation as switching, and the project has the other version. From
then on there is no way back: each branch's new data takes the place of the old, by renames. A
worker that dies before the mark leaves data that a retry goes on with and a cancel removes; after
the mark, a retry completes the renames.
"""

from collections.abc import Iterable
from dataclasses import replace

from controlplane import clock
from controlplane.compute import compute
from controlplane.compute.data.branch_data import NoSuchBranchData, branch_dir
from controlplane.compute.host.binaries import PostgresUnusable
from controlplane.compute.host.patience import Cancelled, report_progress
from controlplane.compute.host.space import NotEnoughSpace
from controlplane.compute.host.tree import TreeUntrusted
from controlplane.compute.upgrade import major_upgrade
from controlplane.compute.upgrade.major_upgrade import upgraded_place
from controlplane.compute.upgrade.upgrade_catalogs import UpgradeRefused
from controlplane.events.changes import project_updated
from controlplane.events.recording import differences, record
from controlplane.history.operations import replacing_data
from controlplane.models import Branch, BranchState, Operation, OperationStatus
from controlplane.operations.actions.computes import StartRefused
from controlplane.operations.actions.handlers import Attempt
from controlplane.operations.actions.words import failure_message
from controlplane.operations.details import UpgradeProjectDetails
from controlplane.operations.locks import locked_project

# Problems that a retry does not solve.
FINAL = (UpgradeRefused, NoSuchBranchData, NotEnoughSpace, PostgresUnusable, TreeUntrusted)


def upgrade_project(attempt: Attempt) -> None:
    """Give all branches of the project data of the other version, or only check that it works."""
    operation, details = attempt.operation, attempt.details
    assert isinstance(details, UpgradeProjectDetails)
    branches = _branches_of(operation)
    if not details.switching:
        _prepare(operation, branches, details)
        if details.only_check:
            undo_upgrade(operation)
            return
        _mark(operation, details)
    for branch in branches:
        _switch(operation, branch, _key(operation))
        report_progress()


def undo_upgrade(operation: Operation) -> None:
    """Remove what was made for the branches that still have their old data. The caller holds the
    project's branches. Raises OSError, StopFailed."""
    for branch in _branches_of(operation):
        major_upgrade.discard(branch.id, _key(operation))


def _branches_of(operation: Operation) -> Iterable[Branch]:
    """The branches with data, hidden ones too."""
    return Branch.objects.select_related("project").filter(
        project_id=operation.project_id, deleted_at=None, current_state=BranchState.READY
    )


def _key(operation: Operation) -> str:
    return f"upgrade-{operation.id.hex}"


def _prepare(
    operation: Operation, branches: Iterable[Branch], details: UpgradeProjectDetails
) -> None:
    for branch in branches:
        try:
            if not details.only_check:
                compute.stop(branch.id)
            major_upgrade.prepare(branch.id, _key(operation), to=details.to)
        except FINAL as error:
            raise StartRefused(f'the branch "{branch.name}": {failure_message(error)}') from error


def _mark(operation: Operation, details: UpgradeProjectDetails) -> None:
    """Begin the switch, unless the operation was cancelled; it cannot be from now on."""
    with locked_project(operation.project_id) as project:
        row = Operation.objects.get(id=operation.id)
        if row.status != OperationStatus.RUNNING:
            raise Cancelled
        row.details = replace(details, switching=True).as_json()
        row.save(update_fields=["details"])
        changes = differences({"pg_version": project.pg_version}, {"pg_version": details.to})
        if changes:
            project.pg_version, project.updated_at = details.to, clock.now()
            project.save(update_fields=["pg_version", "updated_at"])
            record(project_updated(project, changes, [operation]))


def _switch(operation: Operation, branch: Branch, key: str) -> None:
    fresh = upgraded_place(branch.id, key)
    with replacing_data(operation, branch) as hand_over:
        if fresh.exists() and branch_dir(branch.id).exists():
            hand_over(branch_dir(branch.id), fresh)
        major_upgrade.switch(branch.id, key)
