"""Brings what an operation had begun, and somebody has cancelled, to a safe point: its branches'
computes to what the rows say, and a copy out of the way.

Called by the engine, with the operation's branches locked on this host; again after a crash at
any point. Where the rows had to go back, they did so when the cancel was asked for (`cancelling`).
"""

import logging

from controlplane.compute import branch_data, compute
from controlplane.compute.filesystem import forget_lock
from controlplane.compute.patience import patience
from controlplane.compute.process import StopFailed
from controlplane.compute.schema_only import end_schema_work
from controlplane.models import Branch, BranchState, Endpoint, EndpointState, Operation
from controlplane.operations.actions import details_of, rule_of
from controlplane.operations.details import ApplyConfigDetails
from controlplane.operations.replacing import replacement_of
from controlplane.operations.running import compute_spec

log = logging.getLogger(__name__)

# Seconds without progress for having a running compute take its old settings again; one that
# does not is stopped, and starts with them.
RECONFIGURE_BOUND = 10.0


def undo(operation: Operation, branches: list[str]) -> None:
    """Leave no half of the operation's work; `branches` are those that it holds.

    Raises OSError where a copy cannot be removed, StopFailed where what works on it cannot be
    ended.
    """
    for branch_id in branches:
        _bring_to_rows(branch_id, operation)
    if rule_of(operation).makes_branch:
        undo_data(operation)


def undo_data(operation: Operation) -> None:
    """Have the data of the operation's branch lie as before it. The caller holds its branches.
    Raises OSError."""
    replacement = replacement_of(operation)
    if replacement and replacement.kept_as:
        branch_data.take_back(str(operation.branch_id), kept_as=replacement.kept_as)
        # The branch that was to keep the data never comes to be.
        forget_lock(replacement.kept_as)
    else:
        _remove_copy(operation)


def _bring_to_rows(branch_id: str, operation: Operation) -> None:
    """Stop what runs on the branch, unless it is an endpoint's that is active there."""
    endpoint = (
        Endpoint.objects.select_related("branch__project__account", "project__region")
        .filter(branch_id=branch_id, deleted_at=None, current_state=EndpointState.ACTIVE)
        .first()
    )
    if endpoint and compute.running_endpoint(branch_id) == endpoint.id:
        details = details_of(operation.action, operation.details)
        # It may have other settings by now, or be on its way to its end.
        is_touched = isinstance(details, ApplyConfigDetails) and details.may_restart
        if not is_touched or _has_old_settings(endpoint):
            return
    try:
        compute.stop(branch_id)
    except StopFailed as error:
        # The rows will say that it runs; the reconciler goes on.
        log.error("compute not stopped", extra={"branch": branch_id, "error": str(error)})


def _has_old_settings(endpoint: Endpoint) -> bool:
    """Have the running compute go back to the endpoint's settings; whether it did."""
    spec = compute_spec(endpoint)
    try:
        with patience(RECONFIGURE_BOUND):
            compute.reconfigure(spec)
    except Exception as error:
        # Whatever keeps it from that, it must not go on with settings that nobody wants.
        fields = {"endpoint": endpoint.id, "error": repr(error)}
        log.warning("compute does not take its old settings, stopped", extra=fields)
        return False
    return compute.running_endpoint(endpoint.branch_id) == endpoint.id


def _remove_copy(operation: Operation) -> None:
    branch = Branch.objects.get(id=operation.branch_id)
    if branch.current_state != BranchState.READY:
        end_schema_work(branch.id, branch.source.id if branch.source else None)
        branch_data.remove(branch.id)
