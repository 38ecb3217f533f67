"""What the deletion of a branch takes, and what forbids it: for whoever asks for it (`services`)
and for the round of those whose time has come (`expiry`). The callers hold the project's lock."""

from collections.abc import Sequence

from controlplane.models import Action, Branch, Endpoint, Operation, Project
from controlplane.operations.scheduling import Step, schedule

# Of the children that keep a branch, so many are named.
MOST_NAMED = 5


def why_it_stays(branch: Branch) -> str | None:
    """Why the branch cannot be deleted, in words; None where it can."""
    if branch.default:
        return "the default branch cannot be deleted; set another one first"
    if branch.protected:
        return "the branch is protected; end its protection first"
    if children := children_of(branch):
        return f"the branch has children: {', '.join(children)}; delete them first"
    return None


def children_of(branch: Branch) -> list[str]:
    """The ids of its first children, the oldest first."""
    children = Branch.objects.filter(parent=branch, deleted_at=None, hidden=False).order_by(
        "created_at"
    )
    return list(children.order_by("created_at").values_list("id", flat=True)[:MOST_NAMED])


def deletion_of(branch: Branch, operations: Sequence[Operation]) -> list[Operation]:
    """Those of the project's unfinished operations, oldest first, that delete the branch."""
    of_branch = [row for row in operations if row.branch_id == branch.id]
    for position, operation in enumerate(of_branch):
        if operation.action == Action.DELETE_TIMELINE:
            return [row for row in of_branch[: position + 1] if row.chain == operation.chain]
    return []


def schedule_deletion(project: Project, branch: Branch) -> list[Operation]:
    """The branch goes with its data and its endpoint, once the operations have ended."""
    steps = []
    endpoint = Endpoint.objects.filter(branch=branch, deleted_at=None).first()
    if endpoint:
        steps.append(Step(Action.SUSPEND_COMPUTE, branch=branch, endpoint=endpoint))
    steps.append(Step(Action.DELETE_TIMELINE, branch=branch))
    return schedule(project, steps)
