"""Finalizes the restore of a snapshot: the branch that was restored takes the place of the branch
that it was restored for."""

from collections.abc import Sequence

from controlplane import clock
from controlplane.events.changes import branch_updated
from controlplane.events.differences import differences
from controlplane.events.recording import record
from controlplane.models import Account, Branch, BranchState, Endpoint, EndpointState, Operation
from controlplane.operations.engine.effects import pending_state
from controlplane.operations.engine.scheduling import unfinished
from controlplane.services import endpoints
from controlplane.services.branches import (
    find_branch,
    refuse_taken_name,
    refuse_while_deleting,
    refuse_while_replaced,
)
from controlplane.services.errors import NotFound, Unprocessable
from controlplane.services.projects import changing_project
from controlplane.services.rules.branch_expiry import refuse_to_depend_on
from controlplane.services.rules.endpoint_attributes import EndpointAttributes
from controlplane.services.snapshots import name_of_replaced


def finalize_restore(
    account: Account, project_id: str, branch_id: str, *, name: str | None
) -> tuple[Branch, list[Operation]]:
    """Give the restored branch the name and the endpoint of the branch that it was restored for,
    and make it the default branch if that one was. The other branch keeps its id, data and children
    under `name`, by default `<name>_old_<time>`. No data is copied (specification, section 3.4).

    Returns the restored branch, and the operations that bring the endpoint back to its state.

    Raises NotFound, Conflict, Locked, Unprocessable, QuotaExceeded.
    """
    with changing_project(account, project_id) as project:
        restored = find_branch(project, branch_id)
        if restored.restores_over is None:
            raise Unprocessable("the branch is not a restore that waits to be finalized")
        try:
            replaced = find_branch(project, restored.restores_over)
        except NotFound:
            raise Unprocessable(
                "the branch that it was restored for was deleted: rename this one instead"
            ) from None
        earlier = unfinished(project.id)
        for branch in (restored, replaced):
            refuse_while_deleting(branch, earlier)
            refuse_while_replaced(branch, earlier)
        if restored.current_state != BranchState.READY:
            raise Unprocessable("branch not ready yet")
        if replaced.protected:
            raise Unprocessable("the branch is protected; end its protection first")
        operations = _move_endpoint(account, replaced, restored, earlier)
        if name is not None:
            refuse_taken_name(project, name)
        if replaced.default:
            refuse_to_depend_on(restored, "the default")
        # In this order, because two branches may not have one name, nor both be the default.
        restored_name, is_default = replaced.name, replaced.default or restored.default
        _change(replaced, name=name or name_of_replaced(replaced), default=False)
        restored.restores_over = None
        _change(restored, name=restored_name, default=is_default)
        return restored, operations


def _change(branch: Branch, *, name: str, default: bool) -> None:
    before = {"name": branch.name, "default": branch.default}
    branch.name, branch.default, branch.updated_at = name, default, clock.now()
    branch.save(update_fields=["name", "default", "restores_over", "updated_at"])
    changed = differences(before, {"name": name, "default": default})
    record(branch_updated(branch.project, branch, changed))


def _move_endpoint(
    account: Account, replaced: Branch, restored: Branch, earlier: Sequence[Operation]
) -> list[Operation]:
    """Reassign the endpoint of `replaced` to `restored`, and start it if it was active or starting.
    The caller holds the project's lock."""
    project_id, living = restored.project_id, Endpoint.objects.filter(deleted_at=None)
    endpoint = living.filter(branch=replaced).first()
    if endpoint is None:
        return []
    state = pending_state(endpoint, earlier) or endpoint.current_state
    if own := living.filter(branch=restored).first():
        endpoints.delete_endpoint(account, project_id, own.id)
    operations = endpoints.update_endpoint(
        account, project_id, endpoint.id, branch_id=restored.id, requested=EndpointAttributes()
    ).operations
    if state == EndpointState.ACTIVE:
        operations += endpoints.start_endpoint(account, project_id, endpoint.id).operations
    return operations
