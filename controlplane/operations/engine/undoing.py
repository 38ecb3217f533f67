"""Brings what a cancelled operation had begun to a safe point: the computes of its branches run or
are stopped as the rows say, and an unfinished copy is removed.

Called by the engine with the operation's branches locked on this host, and called again after a
crash at any point. The rows were already changed back when the cancel was requested (`cancelling`).
"""

import logging

from controlplane.compute import compute
from controlplane.compute.data import branch_data
from controlplane.compute.host.filesystem import forget_lock
from controlplane.compute.host.patience import patience
from controlplane.compute.processes.process import StopFailed
from controlplane.compute.schemas.schema_only import end_schema_work
from controlplane.history.operations import note_history
from controlplane.models import Branch, BranchState, Endpoint, EndpointState, Operation
from controlplane.operations.actions.computes import compute_spec
from controlplane.operations.actions.table import details_of, rule_of
from controlplane.operations.details import ApplyConfigDetails
from controlplane.operations.engine.replacing import replacement_of

log = logging.getLogger(__name__)

# Seconds without progress that a running compute gets to apply its old settings again. If it fails,
# it is stopped, and its next start uses them.
RECONFIGURE_TIMEOUT = 10.0


def undo(operation: Operation, branches: list[str]) -> None:
    """Leave nothing of the operation's work half-done; `branches` are the ids that it holds.

    Raises OSError if a copy cannot be removed, StopFailed if a process that works on it cannot be
    ended.
    """
    for branch_id in branches:
        _restore_to_rows(branch_id, operation)
    rule = rule_of(operation)
    if rule.makes_branch or rule.undo:
        undo_data(operation)


def undo_data(operation: Operation) -> None:
    """Give the operation's branches the data that they had before the operation. The caller holds
    them. Raises OSError."""
    if own_undo := rule_of(operation).undo:
        own_undo(operation)
        return
    replacement = replacement_of(operation)
    if replacement and replacement.kept_as:
        branch_data.undo_replace(str(operation.branch_id), kept_as=replacement.kept_as)
        note_history(str(operation.branch_id), replacement.kept_as)
        # The branch that was to keep the previous data will never exist.
        forget_lock(replacement.kept_as)
    else:
        _remove_copy(operation)


def _restore_to_rows(branch_id: str, operation: Operation) -> None:
    """Stop what runs on the branch, unless it is the compute of an endpoint that is active on it
    and has the endpoint's settings."""
    endpoint = (
        Endpoint.objects.select_related("branch__project__account", "project__host")
        .filter(branch_id=branch_id, deleted_at=None, current_state=EndpointState.ACTIVE)
        .first()
    )
    if endpoint and compute.running_endpoint(branch_id) == endpoint.id:
        details = details_of(operation.action, operation.details)
        # The operation may have given it other settings, or have begun to stop it.
        is_touched = isinstance(details, ApplyConfigDetails) and details.may_restart
        if not is_touched or _has_old_settings(endpoint):
            return
    try:
        compute.stop(branch_id)
    except StopFailed as error:
        # The rows will say what runs; the reconciler corrects any difference that remains.
        log.error("compute not stopped", extra={"branch": branch_id, "error": str(error)})


def _has_old_settings(endpoint: Endpoint) -> bool:
    """Make the running compute apply the endpoint's settings again; return whether it did."""
    spec = compute_spec(endpoint)
    try:
        with patience(RECONFIGURE_TIMEOUT):
            compute.reconfigure(spec)
    except Exception as error:
        # Whatever the reason is, it must not run on with the settings that were cancelled.
        fields = {"endpoint": endpoint.id, "error": repr(error)}
        log.warning("compute did not apply its previous settings, stopped", extra=fields)
        return False
    return compute.running_endpoint(endpoint.branch_id) == endpoint.id


def _remove_copy(operation: Operation) -> None:
    branch = Branch.objects.get(id=operation.branch_id)
    if branch.current_state != BranchState.READY:
        end_schema_work(branch.id, branch.source.id if branch.source else None)
        branch_data.remove(branch.id)
