"""What it takes to do the work of failed or cancelled operations anew, and whether that still makes
sense. What has changed since is minded: the rows are brought to what was wanted then, by the rules
that hold now.

The callers hold the project's lock.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from django.utils import timezone

from controlplane.models import (
    GIVEN_UP,
    Action,
    Branch,
    BranchState,
    Configuration,
    Endpoint,
    EndpointState,
    Operation,
    OperationStatus,
    Project,
)
from controlplane.operations.actions import MAKES_BRANCH, details_of
from controlplane.operations.details import ApplyConfigDetails
from controlplane.operations.effects import pending_state
from controlplane.operations.scheduling import Step, unfinished
from controlplane.services.branches import refuse_deletion, refuse_while_deleting
from controlplane.services.creation import creation_again
from controlplane.services.endpoint_attributes import check_endpoint
from controlplane.services.endpoints import refuse_occupied, refuse_while_configured
from controlplane.services.errors import Conflict, Unprocessable

CONFIGURED = [field.name for field in fields(Configuration)]


@dataclass(frozen=True)
class Retry:
    """One operation that is to be tried again, and what is around it."""

    operation: Operation
    # It and the others that are tried again with it, oldest first.
    together: Sequence[Operation]
    # The project's unfinished operations.
    earlier: Sequence[Operation]

    @property
    def branch(self) -> Branch:
        """Raises Conflict where it was deleted."""
        branch = self.operation.branch
        assert branch is not None
        if branch.deleted_at is not None:
            raise Conflict(f"the branch {branch.id} was deleted")
        return branch

    @property
    def endpoint(self) -> Endpoint:
        """As its row is now. Raises Conflict where it was deleted, Locked where its branch is about
        to be."""
        endpoint = (
            Endpoint.objects.select_related("branch", "project__account", "project__region")
            .filter(id=self.operation.endpoint_id, deleted_at=None)
            .first()
        )
        if endpoint is None:
            raise Conflict(f"the endpoint {self.operation.endpoint_id} was deleted")
        refuse_while_deleting(endpoint.branch, self.earlier)
        return endpoint

    @property
    def heading_for(self) -> str:
        """The state that the endpoint is in, or under way to."""
        endpoint = self.endpoint
        return pending_state(endpoint, self.earlier) or endpoint.current_state

    def has(self, action: Action) -> bool:
        return any(row.action == action for row in self.together)

    def refuse_if_superseded(self, *actions: Action, having: str = "") -> None:
        """Raises Conflict where a newer operation of the endpoint has one of these actions, with
        such a detail, and did not fail."""
        newer = Operation.objects.filter(
            endpoint_id=self.operation.endpoint_id,
            action__in=actions,
            created_at__gt=self.operation.created_at,
        ).exclude(chain=self.operation.chain)
        if having:
            newer = newer.filter(details__has_key=having)
        found = newer.exclude(status__in=GIVEN_UP).order_by("-created_at").first()
        if found:
            verb = "has finished" if found.is_finished else "is under way"
            raise Conflict(f"the newer operation {found.id} ({found.action}) {verb}")


def retries_of(operation: Operation) -> list[Operation]:
    """The chain that tries the operation again now; none where none does.

    Raises Conflict where one did, and finished.
    """
    again = Operation.objects.filter(retry_of=operation).order_by("-created_at").first()
    if again is None:
        return []
    chain = list(Operation.objects.filter(chain=again.chain).order_by("created_at"))
    if not all(row.is_finished for row in chain):
        return chain
    if again.status == OperationStatus.FINISHED:
        raise Conflict(f"the operation was tried again by {again.id}, which has finished")
    return []


def steps_again(project: Project, operations: Sequence[Operation]) -> list[Step]:
    """The steps that do the work of the operations, of one chain and oldest first; the rows are
    changed as they are to be.

    Raises Conflict where that makes no sense any more; what was to follow a branch's creation is
    left out then. Raises Locked, and what a request for the same would.
    """
    earlier = unfinished(project.id)
    steps: list[Step] = []
    for operation in operations:
        retry = Retry(operation, operations, earlier)
        try:
            again = AGAIN[Action(operation.action)](retry)
        except Conflict:
            if not steps or operations[0].action not in MAKES_BRANCH:
                raise
            continue
        steps += _without_repeated_creations(again, steps)
    return steps


def _without_repeated_creations(again: Sequence[Step], steps: Sequence[Step]) -> list[Step]:
    made = {step.branch.id for step in steps if step.branch and step.endpoint is None}
    return [
        step
        for step in again
        if step.endpoint is not None or step.branch is None or step.branch.id not in made
    ]


def _create(retry: Retry) -> list[Step]:
    branch = retry.branch
    refuse_while_deleting(branch, retry.earlier)
    if branch.current_state == BranchState.READY:
        raise Conflict(f"the branch {branch.id} has been made since")
    steps = creation_again(branch, retry.earlier)
    if not steps:
        raise Conflict(f"the branch {branch.id} is being made")
    *parents, last = steps
    return [*parents, replace(last, retry_of=retry.operation)]


def _start(retry: Retry) -> list[Step]:
    endpoint = retry.endpoint
    if endpoint.disabled:
        raise Conflict("endpoint is disabled")
    retry.refuse_if_superseded(Action.START_COMPUTE, Action.SUSPEND_COMPUTE)
    if retry.heading_for == EndpointState.ACTIVE and not retry.has(Action.SUSPEND_COMPUTE):
        raise Conflict("the endpoint is active already")
    return [*creation_again(endpoint.branch, retry.earlier), _step(retry, endpoint)]


def _suspend(retry: Retry) -> list[Step]:
    if retry.has(Action.DELETE_TIMELINE):
        return _suspend_before_deletion(retry)
    endpoint = retry.endpoint
    if retry.has(Action.APPLY_CONFIG):
        # A configuration is proved on a running compute; one that slept goes back to sleep. One
        # that serves clients by now goes on.
        runs = retry.heading_for == EndpointState.ACTIVE and not endpoint.disabled
        return [] if runs and not _is_reassignment(retry) else [_step(retry, endpoint)]
    retry.refuse_if_superseded(Action.START_COMPUTE, Action.SUSPEND_COMPUTE)
    if len(retry.together) == 1 and retry.heading_for == EndpointState.IDLE:
        raise Conflict("the endpoint is idle already")
    return [_step(retry, endpoint)]


def _apply(retry: Retry) -> list[Step]:
    endpoint = retry.endpoint
    details = details_of(retry.operation.action, retry.operation.details)
    assert isinstance(details, ApplyConfigDetails)
    if not details.may_restart:
        return _apply_catalog(retry, endpoint)
    left = _reassign(retry, endpoint, details.from_branch_id) if details.from_branch_id else None
    before = _configure(retry, endpoint, details) if details.before else None
    if before is None and not details.from_branch_id:
        raise Conflict("the endpoint has these settings already")
    endpoint.updated_at = timezone.now()
    endpoint.save(update_fields=["branch", *CONFIGURED, "updated_at"])
    step = Step(
        Action.APPLY_CONFIG,
        branch=endpoint.branch,
        endpoint=endpoint,
        also_holds=[left] if left else [],
        details=ApplyConfigDetails(from_branch_id=left.id if left else None, before=before),
        retry_of=retry.operation,
    )
    return [*creation_again(endpoint.branch, retry.earlier), step]


def _apply_catalog(retry: Retry, endpoint: Endpoint) -> list[Step]:
    """Roles and databases: all that the compute does not hold yet."""
    branch = endpoint.branch
    if branch.applied_catalog_revision == branch.catalog_revision:
        raise Conflict("the branch's roles and databases have been applied since")
    # It is for this operation to fail for them once more.
    for rows in (branch.roles, branch.databases):
        rows.filter(catalog_error_of=retry.operation.created_at).update(catalog_error_of=None)
    return [*creation_again(branch, retry.earlier), _step(retry, endpoint)]


def _reassign(retry: Retry, endpoint: Endpoint, left_id: str) -> Branch | None:
    """Put the endpoint on the branch that it was to reach; returns the one that it leaves."""
    goal = retry.branch
    refuse_while_deleting(goal, retry.earlier)
    if endpoint.branch_id not in (goal.id, left_id):
        raise Conflict(f"the endpoint was reassigned to {endpoint.branch_id} since")
    retry.refuse_if_superseded(Action.APPLY_CONFIG, having="from_branch_id")
    if endpoint.branch_id == left_id:
        refuse_occupied(goal)
        endpoint.branch = goal
    return Branch.objects.filter(id=left_id, deleted_at=None).first()


def _configure(
    retry: Retry, endpoint: Endpoint, details: ApplyConfigDetails
) -> Configuration | None:
    """Give the endpoint what was wanted; returns what it had, None where it has that already."""
    refuse_while_configured(endpoint, retry.earlier)
    retry.refuse_if_superseded(Action.APPLY_CONFIG, having="before")
    before, wanted = endpoint.configuration, details.wanted
    if wanted is None:
        raise Conflict("what was to be applied is not known any more; send the change again")
    if wanted == before:
        return None
    changed = [name for name in CONFIGURED if getattr(wanted, name) != getattr(before, name)]
    for name in changed:
        setattr(endpoint, name, getattr(wanted, name))
    check_endpoint(endpoint, changed)
    return before


def _check(retry: Retry) -> list[Step]:
    endpoint = retry.endpoint
    if endpoint.disabled:
        raise Conflict("endpoint is disabled")
    retry.refuse_if_superseded(Action.CHECK_AVAILABILITY)
    # Whatever it was to look for: the whole of a check.
    return [
        Step(
            Action.CHECK_AVAILABILITY,
            branch=endpoint.branch,
            endpoint=endpoint,
            retry_of=retry.operation,
        )
    ]


def _suspend_before_deletion(retry: Retry) -> list[Step]:
    branch = _deletable(retry)
    endpoint = Endpoint.objects.filter(branch=branch, deleted_at=None).first()
    if endpoint is None:
        return []
    retried = retry.operation if retry.operation.action == Action.SUSPEND_COMPUTE else None
    return [
        Step(Action.SUSPEND_COMPUTE, branch=branch, endpoint=endpoint, retry_of=retried),
    ]


def _delete_branch(retry: Retry) -> list[Step]:
    suspend = [] if retry.has(Action.SUSPEND_COMPUTE) else _suspend_before_deletion(retry)
    deletion = Step(Action.DELETE_TIMELINE, branch=_deletable(retry), retry_of=retry.operation)
    return [*suspend, deletion]


def _deletable(retry: Retry) -> Branch:
    branch = retry.branch
    refuse_while_deleting(branch, retry.earlier)
    try:
        refuse_deletion(branch)
    except Unprocessable as error:
        raise Conflict(error.message) from error
    return branch


# By action, the steps that do an operation's work anew. Of a deleted project nobody can ask it.
AGAIN: Mapping[Action, Callable[[Retry], list[Step]]] = {
    Action.CREATE_TIMELINE: _create,
    Action.CREATE_BRANCH: _create,
    Action.START_COMPUTE: _start,
    Action.SUSPEND_COMPUTE: _suspend,
    Action.APPLY_CONFIG: _apply,
    Action.CHECK_AVAILABILITY: _check,
    Action.DELETE_TIMELINE: _delete_branch,
}


def _is_reassignment(retry: Retry) -> bool:
    return any("from_branch_id" in row.details for row in retry.together)


def _step(retry: Retry, endpoint: Endpoint) -> Step:
    """The operation's own, on the branch where its endpoint is now."""
    operation = retry.operation
    return Step(
        Action(operation.action),
        branch=endpoint.branch,
        endpoint=endpoint,
        details=details_of(operation.action, operation.details),
        retry_of=operation,
    )
