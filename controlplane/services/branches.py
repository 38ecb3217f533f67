"""Branches: create, list, rename, make default, delete."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from django.utils import timezone

from controlplane.events.changes import (
    branch_created,
    branch_deletion_requested,
    branch_updated,
    endpoint_created,
)
from controlplane.events.differences import differences
from controlplane.events.recording import record
from controlplane.models import (
    HOPEFUL,
    Account,
    Action,
    Branch,
    BranchState,
    Database,
    Endpoint,
    Operation,
    Project,
    Role,
)
from controlplane.operations.actions import MAKES_BRANCH
from controlplane.operations.replacing import is_replaced, replacement_of
from controlplane.operations.scheduling import Step, schedule, unfinished
from controlplane.services.creation import creation_again, make_branch, make_endpoint
from controlplane.services.endpoint_attributes import EndpointAttributes
from controlplane.services.errors import Conflict, Locked, NotFound, Unprocessable
from controlplane.services.projects import changing_project, find_project

CatalogRow = TypeVar("CatalogRow", Role, Database)


@dataclass(frozen=True, kw_only=True)
class BranchSpec:
    """What a request asks of a new branch; None leaves the choice to the service."""

    name: str | None = None
    # By default, the default branch.
    parent_id: str | None = None
    # Branching from the past needs a history that a data directory does not keep.
    parent_lsn: str | None = None
    parent_timestamp: str | None = None
    protected: bool = False
    endpoints: Sequence[EndpointAttributes] = ()


@dataclass(frozen=True)
class NewBranch:
    """What a branch was created with: its endpoint, if one was asked for, and the roles and
    databases that it has from its parent."""

    branch: Branch
    endpoints: list[Endpoint]
    roles: list[Role]
    databases: list[Database]
    operations: list[Operation]


def find_branch(project: Project, branch_id: str) -> Branch:
    """Raises NotFound."""
    branch = Branch.objects.filter(
        project=project, id=branch_id, deleted_at=None, hidden=False
    ).first()
    if branch is None:
        raise NotFound("branch not found")
    return branch


def default_branch(project: Project) -> Branch:
    return Branch.objects.get(project=project, default=True, deleted_at=None)


def get_branch(account: Account, project_id: str, branch_id: str) -> Branch:
    """The branch, with its pending state. Raises NotFound."""
    project = find_project(account, project_id)
    return _with_pending(project, [find_branch(project, branch_id)])[0]


def list_branches(account: Account, project_id: str, *, search: str = "") -> list[Branch]:
    """The project's branches, the last changed first. Raises NotFound."""
    project = find_project(account, project_id)
    branches = Branch.objects.filter(project=project, deleted_at=None, hidden=False)
    if search:
        branches = branches.filter(name__icontains=search)
    return _with_pending(project, list(branches.order_by("-updated_at", "id")))


def create_branch(account: Account, project_id: str, spec: BranchSpec) -> NewBranch:
    """A branch with all that is committed on its parent, and with an endpoint if asked.

    Raises NotFound, Conflict, Locked, Invalid, Unprocessable.
    """
    if spec.parent_lsn or spec.parent_timestamp:
        raise Unprocessable("branching from a point in the past is not available here")
    if len(spec.endpoints) > 1:
        raise Unprocessable("a branch has at most one read_write endpoint")
    with changing_project(account, project_id) as project:
        parent = find_branch(project, spec.parent_id) if spec.parent_id else default_branch(project)
        earlier = unfinished(project.id)
        refuse_while_deleting(parent, earlier)
        refuse_while_replaced(parent, earlier)
        if spec.name:
            refuse_taken_name(project, spec.name)
        roles, databases = copied_catalog(parent)
        branch, creation = make_branch(
            project,
            name=spec.name or free_name(project),
            parent=parent,
            protected=spec.protected,
            roles=roles,
            databases=databases,
        )
        endpoints, steps = [], [*creation_again(parent, earlier), creation]
        for asked in spec.endpoints:
            endpoint, start = make_endpoint(project, branch, asked)
            endpoints.append(endpoint)
            steps += start
        operations = schedule(project, steps)
        record(branch_created(project, branch, operations))
        record(*(endpoint_created(project, endpoint, operations) for endpoint in endpoints))
    return NewBranch(
        branch,
        endpoints,
        [role for role in roles if role.deleted_at is None],
        [database for database in databases if database.deleted_at is None],
        operations,
    )


def update_branch(
    account: Account,
    project_id: str,
    branch_id: str,
    *,
    name: str | None,
    protected: bool | None,
) -> Branch:
    """Rename or protect a branch; None for what was not sent. Raises NotFound, Conflict."""
    with changing_project(account, project_id) as project:
        branch = find_branch(project, branch_id)
        before = {"name": branch.name, "protected": branch.protected}
        if name is not None and name != branch.name:
            refuse_taken_name(project, name)
            branch.name = name
        if protected is not None:
            branch.protected = protected
        branch.updated_at = timezone.now()
        branch.save(update_fields=["name", "protected", "updated_at"])
        after = {"name": branch.name, "protected": branch.protected}
        if changes := differences(before, after):
            record(branch_updated(project, branch, changes))
    return branch


def set_default_branch(account: Account, project_id: str, branch_id: str) -> Branch:
    """Raises NotFound, Unprocessable."""
    with changing_project(account, project_id) as project:
        branch = find_branch(project, branch_id)
        if branch.current_state != BranchState.READY:
            raise Unprocessable("branch not ready yet")
        refuse_while_deleting(branch, unfinished(project.id))
        now = timezone.now()
        if not branch.default:
            _set_default(project, branch, now)
    return branch


def _set_default(project: Project, branch: Branch, now: datetime) -> None:
    before = default_branch(project)
    for row, default in ((before, False), (branch, True)):
        row.default, row.updated_at = default, now
        row.save(update_fields=["default", "updated_at"])
        changes = {"default": {"from": not default, "to": default}}
        record(branch_updated(project, row, changes))


def delete_branch(
    account: Account, project_id: str, branch_id: str
) -> tuple[Branch, list[Operation]]:
    """Delete a branch, its data and its endpoint; all are there until the operations end.

    Deleting again returns the operations that are under way. Raises NotFound, Unprocessable.
    """
    with changing_project(account, project_id) as project:
        branch = find_branch(project, branch_id)
        earlier = unfinished(project.id)
        under_way = _deletion_of(branch, earlier)
        if under_way:
            return branch, under_way
        refuse_while_restoring(branch, earlier)
        refuse_deletion(branch)
        steps = []
        endpoint = Endpoint.objects.filter(branch=branch, deleted_at=None).first()
        if endpoint:
            steps.append(Step(Action.SUSPEND_COMPUTE, branch=branch, endpoint=endpoint))
        steps.append(Step(Action.DELETE_TIMELINE, branch=branch))
        operations = schedule(project, steps)
        record(branch_deletion_requested(project, branch, operations))
        return branch, operations


def refuse_deletion(branch: Branch) -> None:
    """Raises Unprocessable where the branch must stay."""
    if branch.default:
        raise Unprocessable("the default branch cannot be deleted; set another one first")
    if branch.protected:
        raise Unprocessable("the branch is protected; end its protection first")
    children = Branch.objects.filter(parent=branch, deleted_at=None, hidden=False)
    if names := list(children.order_by("created_at").values_list("id", flat=True)[:5]):
        raise Unprocessable(f"the branch has children: {', '.join(names)}; delete them first")


def refuse_while_deleting(branch: Branch, operations: Sequence[Operation]) -> None:
    """Raises Locked where the branch is about to go, by its project's unfinished operations."""
    if _deletion_of(branch, operations):
        raise Locked


def refuse_while_replaced(branch: Branch, operations: Sequence[Operation]) -> None:
    """Raises Locked where other data is coming in the place of the branch's, or the branch itself
    is to keep what another's was: what was changed of it now would be lost."""
    if is_replaced(branch, operations):
        raise Locked


def refuse_while_restoring(branch: Branch, operations: Sequence[Operation]) -> None:
    """Raises Locked where the branch has a part in a restore: once that is over it is another
    branch's parent, which must stay."""
    if any(branch.id in row.resources for row in operations if replacement_of(row)):
        raise Locked


def refuse_taken_name(project: Project, name: str) -> None:
    """Raises Conflict."""
    taken = Branch.objects.filter(project=project, name=name, deleted_at=None, hidden=False)
    if taken.exists():
        raise Conflict(f'branch already exists; branch_name:"{name}"')


def _with_pending(project: Project, branches: list[Branch]) -> list[Branch]:
    being_created: set[str | None] = set()
    replaced = set()
    for row in unfinished(project.id):
        if row.action in MAKES_BRANCH and row.status in HOPEFUL:
            being_created.add(row.branch_id)
            if details := replacement_of(row):
                replaced.add(row.branch_id)
                being_created.add(details.kept_as)
    for branch in branches:
        if branch.id in being_created:
            branch.pending_state = BranchState.READY
        branch.is_resetting = branch.id in replaced
    return branches


def _deletion_of(branch: Branch, operations: Sequence[Operation]) -> list[Operation]:
    """Those of the project's unfinished operations, oldest first, that delete the branch."""
    of_branch = [row for row in operations if row.branch_id == branch.id]
    for position, operation in enumerate(of_branch):
        if operation.action == Action.DELETE_TIMELINE:
            return [row for row in of_branch[: position + 1] if row.chain == operation.chain]
    return []


def copied_catalog(branch: Branch) -> tuple[list[Role], list[Database]]:
    """The branch's roles and databases as new rows, to be saved for another branch. Those that wait
    to be dropped come too: the data may hold what they stand for."""
    return (
        _copies(list(branch.roles.order_by("id"))),
        _copies(list(branch.databases.order_by("id"))),
    )


def _copies(rows: list[CatalogRow]) -> list[CatalogRow]:
    """The same rows as new ones, to be saved for another branch."""
    for row in rows:
        row.pk = None
    return rows


def free_name(project: Project) -> str:
    """Of a branch that nobody has named."""
    while True:
        name = f"branch-{secrets.token_hex(4)}"
        if not Branch.objects.filter(project=project, name=name).exists():
            return name
