"""The first steps with a new project: what its owner has tried already, and what comes next."""

from collections.abc import Sequence
from dataclasses import dataclass

from console.api.resources.branches import Branch
from console.api.resources.operations import Operation
from console.api.resources.projects import Project

# An owner of more branches than these needs no first steps.
MAX_BEGINNER_BRANCHES = 5


@dataclass(frozen=True)
class Step:
    title: str
    words: str
    is_done: bool
    # The name of the URL of the form that does it, "" if it has none.
    form: str = ""


def first_steps(
    project: Project, branches: Sequence[Branch], operations: Sequence[Operation], *, is_all: bool
) -> list[Step]:
    """Return the steps; none once all are done or the project has grown, or if what the API said
    is not enough to tell.

    `operations` are the project's latest ones, the newest first; `is_all` says if there are no
    others.
    """
    if not is_all or project.usage.transferred is None or len(branches) > MAX_BEGINNER_BRANCHES:
        return []
    steps = [
        Step("Create a project", "A new project has a branch and an endpoint.", True),
        Step(
            "Connect",
            "Take the connection string to psql, a driver or an ORM.",
            project.usage.transferred > 0,
            "project_connect",
        ),
        Step(
            "Create a branch",
            "A copy of all data in seconds, to try a migration or to test with.",
            len(branches) > 1,
            "branch_create",
        ),
        Step(
            "Let it suspend, and start again",
            "An idle endpoint is suspended. Connect again, and it starts.",
            _has_woken(operations),
        ),
    ]
    return [] if all(step.is_done for step in steps) else steps


def _has_woken(operations: Sequence[Operation]) -> bool:
    """True if an endpoint has started after it had been suspended."""
    suspended: set[str] = set()
    for operation in reversed(operations):
        if operation.status == "finished" and operation.action == "suspend_compute":
            suspended.add(operation.endpoint_id)
        elif (
            operation.status == "finished"
            and operation.action == "start_compute"
            and operation.endpoint_id in suspended
        ):
            return True
    return False
