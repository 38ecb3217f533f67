"""Replaces a branch by the state of another one. A reset or a restore replaces its data: the branch
keeps its id, name and endpoint. A restore of a snapshot that is finalized replaces the branch
itself: the restored branch gets its name and endpoint."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from controlplane import clock
from controlplane.events.changes import branch_restore_requested, branch_updated
from controlplane.events.recording import differences, record
from controlplane.models import (
    Account,
    Action,
    Branch,
    BranchState,
    Endpoint,
    EndpointState,
    Operation,
    Project,
    RequestKind,
)
from controlplane.operations.details import CreateBranchDetails, SuspendComputeDetails
from controlplane.operations.engine.effects import pending_state
from controlplane.operations.engine.replacing import replacement_of
from controlplane.operations.engine.scheduling import Step, schedule, unfinished
from controlplane.services import endpoints
from controlplane.services.branches import (
    find_branch,
    refuse_taken_name,
    refuse_while_busy,
)
from controlplane.services.creation import make_branch, make_kept_branch
from controlplane.services.errors import Conflict, NotFound, Unprocessable
from controlplane.services.given_up import GivenUp
from controlplane.services.projects import changing_project
from controlplane.services.rules.branch_expiry import refuse_to_depend_on
from controlplane.services.rules.endpoint_attributes import EndpointAttributes
from controlplane.services.rules.history import (
    PRESENT,
    MomentSpec,
    PastMoment,
    history_of,
    lsn_text,
)

# The most characters of a branch's or a snapshot's name.
MAX_NAME_LENGTH = 256


@dataclass(frozen=True, kw_only=True)
class RestoreSpec:
    """What a request asks of a restore."""

    source_branch_id: str
    # Of the source.
    moment: MomentSpec = PRESENT
    # The name of a new branch that keeps the replaced data; None to remove the data.
    preserve_under_name: str | None = None


def restore_branch(
    account: Account, project_id: str, branch_id: str, spec: RestoreSpec
) -> tuple[Branch, list[Operation]]:
    """Replace the branch's data by all that is committed on the source when it is copied, or was
    committed at a past moment. The source of a past moment may be the branch itself.

    Raises NotFound, Conflict, Locked, HostFull, Unprocessable.
    """
    with changing_project(account, project_id) as project:
        branch = find_branch(project, branch_id)
        source = find_branch(project, spec.source_branch_id, field="source_branch_id")
        moment = spec.moment.of(source)
        name = spec.preserve_under_name
        return branch, replace_data(project, branch, source, name=name, moment=moment)


def replace_data(
    project: Project,
    branch: Branch,
    source: Branch,
    *,
    name: str | None,
    moment: PastMoment | None = None,
) -> list[Operation]:
    """Schedule the replacement of the branch's data by the source's, as it is or as it was at
    `moment`. A branch called `name` keeps the replaced data; without a name the data is removed.
    The caller holds the project's lock.

    A past moment is first created as a hidden branch, while the branch goes on running.

    Raises Conflict, Locked, HostFull, Unprocessable.
    """
    earlier = unfinished(project.id)
    _refuse(project, branch, source, name=name, earlier=earlier, is_past=moment is not None)
    steps = _steps(project, branch, source, name=name, earlier=earlier, moment=moment)
    from_parent = _is_reset(branch, source, moment)
    kind = RequestKind.RESET_BRANCH if from_parent else RequestKind.RESTORE_BRANCH
    title = "" if from_parent else _title(branch, source, moment)
    operations = schedule(project, steps, kind, title=title)
    at = moment.at if moment else None
    lsn = lsn_text(moment.lsn) if moment and moment.lsn is not None else ""
    record(
        branch_restore_requested(
            project, branch, source, operations, from_parent=from_parent, at=at, lsn=lsn
        )
    )
    branch.is_resetting, branch.pending_state = True, BranchState.READY
    return operations


def name_of_replaced(branch: Branch) -> str:
    """The name under which the branch's replaced data is kept."""
    ending = clock.now().strftime("_old_%Y-%m-%dT%H:%M:%S.%fZ")
    return branch.name[: MAX_NAME_LENGTH - len(ending)] + ending


def _title(branch: Branch, source: Branch, moment: PastMoment | None) -> str:
    whence = "a snapshot" if source.hidden else source.name
    if moment is None:
        return f"Restore branch {branch.name} from {whence}"
    goal = f"Restore branch {branch.name} to {moment.words}"
    return goal if source.id == branch.id else f"{goal} of {whence}"


def replace_again(given_up: GivenUp) -> list[Step]:
    """The steps that retry a failed or cancelled restore, of which the operation is the one that
    replaces the data. What it had recovered of the past is recovered again: a round removes it.

    Raises Conflict if a retry makes no sense any more, and everything that a request for the
    restore would raise.
    """
    operation, branch, earlier = given_up.operation, given_up.branch, given_up.earlier
    details = replacement_of(operation)
    assert details is not None
    if branch.last_reset_at and branch.last_reset_at > operation.created_at:
        raise Conflict(f"the branch {branch.id} was restored since")
    source, moment = Branch.objects.get(id=details.source_branch_id), None
    if source.is_recovered_past and source.parent:
        moment = PastMoment(source.parent_timestamp, source.parent_lsn)
        source = source.parent
    if source.deleted_at is not None:
        raise Conflict(f"the source branch {source.id} was deleted")
    if moment is not None:
        field = "source_timestamp" if moment.at else "source_lsn"
        history_of(source).refuse_outside(moment, field)
    kept = Branch.objects.get(id=details.kept_as)
    name = None if kept.hidden else kept.name
    project = operation.project
    _refuse(project, branch, source, name=name, earlier=earlier, is_past=moment is not None)
    steps = _steps(project, branch, source, name=name, earlier=earlier, moment=moment)
    return _as_retries(steps, given_up.together)


def _as_retries(steps: Sequence[Step], operations: Sequence[Operation]) -> list[Step]:
    """The steps, each as the retry of the operation that had the same purpose, and at least one as
    that of the first operation."""
    retried = {(row.action, _is_hidden(row.branch)): row for row in operations}
    found = [retried.get((step.action, _is_hidden(step.branch))) for step in steps]
    if operations[0] not in found:
        found[0] = operations[0]
    return [replace(step, retry_of=row) for step, row in zip(steps, found, strict=True)]


def _is_reset(branch: Branch, source: Branch, moment: PastMoment | None) -> bool:
    return moment is None and source.id == branch.parent_id


def _is_hidden(branch: Branch | None) -> bool:
    return branch is not None and branch.hidden


def _steps(
    project: Project,
    branch: Branch,
    source: Branch,
    *,
    name: str | None,
    earlier: Sequence[Operation],
    moment: PastMoment | None,
) -> list[Step]:
    """The steps of the replacement. While a past moment is recovered, as a hidden branch, an active
    endpoint serves; it is suspended for the switch to what was recovered."""
    past: list[Step] = []
    from_parent = _is_reset(branch, source, moment)
    if moment is not None:
        source, creation = make_branch(
            project,
            name="",
            parent=source,
            protected=source.protected,
            roles=[],
            databases=[],
            hidden=True,
            moment=moment,
        )
        past = [creation]
    kept = make_kept_branch(project, branch, name=name)
    replacement = Step(
        Action.CREATE_BRANCH,
        branch=branch,
        also_holds=[source, kept],
        details=CreateBranchDetails(
            source_branch_id=source.id, kept_as=kept.id, from_parent=from_parent
        ),
    )
    endpoint = Endpoint.objects.filter(branch=branch, deleted_at=None).first()
    if endpoint is None or not _runs(endpoint, earlier):
        return [*past, replacement]
    suspend = Step(
        Action.SUSPEND_COMPUTE,
        branch=branch,
        endpoint=endpoint,
        also_holds=[source] if past else [],
        details=SuspendComputeDetails(after_recovery=bool(past)),
    )
    start = Step(Action.START_COMPUTE, branch=branch, endpoint=endpoint)
    return [*past, suspend, replacement, start]


def _refuse(
    project: Project,
    branch: Branch,
    source: Branch,
    *,
    name: str | None,
    earlier: Sequence[Operation],
    is_past: bool = False,
) -> None:
    if source.id == branch.id and not is_past:
        raise Unprocessable(
            "a branch can be restored from its own past only: name the moment in "
            "source_timestamp or source_lsn",
            fields=["source_branch_id"],
        )
    if branch.protected:
        raise Unprocessable("the branch is protected; end its protection first")
    masks = branch.masked_as == branch.id and source.id == branch.parent_id and not is_past
    if branch.masked_as and source.masked_as != branch.masked_as and not masks:
        raise Unprocessable(
            "the branch is anonymized, so it takes no data that is not, or is by other rules; a "
            "reset from its parent masks the parent's present data",
            fields=["source_branch_id"],
        )
    if not (source.hidden or is_past) and source.id != branch.parent_id:
        refuse_to_depend_on(source, "a parent")
    for one in (branch, source):
        refuse_while_busy(one, earlier)
        if one.current_state != BranchState.READY:
            raise Unprocessable(f'branch not ready yet; branch_id:"{one.id}"')
    if name is not None:
        refuse_taken_name(project, name, field="preserve_under_name")
        return
    children = Branch.objects.filter(parent=branch, deleted_at=None, hidden=False)
    if ids := list(children.order_by("created_at").values_list("id", flat=True)[:5]):
        raise Unprocessable(
            f"the branch has children: {', '.join(ids)}; name a branch in preserve_under_name "
            "that keeps the data and gets the children"
        )


def _runs(endpoint: Endpoint, earlier: Sequence[Operation]) -> bool:
    """Whether the endpoint's pending state, or else its present state, is active."""
    heading_for = pending_state(endpoint, earlier) or endpoint.current_state
    return heading_for == EndpointState.ACTIVE


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
            refuse_while_busy(branch, earlier)
        if restored.current_state != BranchState.READY:
            raise Unprocessable("branch not ready yet")
        if replaced.masked_as and restored.masked_as != replaced.masked_as:
            raise Unprocessable("the branch is anonymized, and the restored one is not")
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
