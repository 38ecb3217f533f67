"""Schedules the deletion of a branch and says what forbids it. Used by the services, for requests,
and by the round that deletes expired branches (`expiry`). Callers hold the project's lock."""

from collections.abc import Sequence

from controlplane.models import Action, Branch, Endpoint, Operation, Project, RequestKind
from controlplane.operations.engine.scheduling import Step, schedule

# The most children named in the message that refuses a deletion.
MAX_NAMED = 5


def deletion_refusal(branch: Branch) -> str | None:
    """Return why the branch cannot be deleted, as a text for users; None if it can be deleted."""
    if branch.default:
        return "the default branch cannot be deleted; set another one first"
    if branch.protected:
        return "the branch is protected; end its protection first"
    if children := children_of(branch):
        return f"the branch has children: {', '.join(children)}; delete them first"
    return None


def children_of(branch: Branch) -> list[str]:
    """Return the ids of the branch's first MAX_NAMED visible children, oldest first."""
    children = Branch.objects.filter(parent=branch, deleted_at=None, hidden=False)
    return list(children.order_by("created_at").values_list("id", flat=True)[:MAX_NAMED])


def deletion_of(branch: Branch, operations: Sequence[Operation]) -> list[Operation]:
    """Return those of the project's unfinished operations (oldest first) that delete the branch;
    an empty list if none does."""
    of_branch = [row for row in operations if row.branch_id == branch.id]
    for position, operation in enumerate(of_branch):
        if operation.action == Action.DELETE_TIMELINE:
            return [row for row in of_branch[: position + 1] if row.chain == operation.chain]
    return []


def schedule_deletion(project: Project, branch: Branch) -> list[Operation]:
    """Schedule the deletion of the branch, its data and its endpoint. They are deleted when the
    operations have ended."""
    steps = []
    endpoint = Endpoint.objects.filter(branch=branch, deleted_at=None).first()
    if endpoint:
        steps.append(Step(Action.SUSPEND_COMPUTE, branch=branch, endpoint=endpoint))
    steps.append(Step(Action.DELETE_TIMELINE, branch=branch))
    if branch.hidden:
        return schedule(project, steps, RequestKind.REMOVE_DATA)
    title = f"Delete branch {branch.name} and its endpoint" if endpoint else ""
    return schedule(project, steps, title=title)
