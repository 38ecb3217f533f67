"""Branches: create, list, rename, make default, delete."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils import timezone

from controlplane.models import (
    Account,
    Action,
    Branch,
    BranchState,
    Database,
    Endpoint,
    EndpointState,
    Operation,
    Project,
    Role,
)
from controlplane.operations.actions import MAKES_BRANCH
from controlplane.operations.engine import Step, schedule, unfinished
from controlplane.services.endpoint_settings import check_limits, check_pg_settings
from controlplane.services.errors import Conflict, Invalid, Locked, NotFound, Unprocessable
from controlplane.services.projects import changing_project, find_project, new_endpoint


@dataclass(frozen=True)
class NewBranch:
    branch: Branch
    endpoints: list[Endpoint]
    operations: list[Operation]


def find_branch(project: Project, branch_id: str) -> Branch:
    """Raises NotFound."""
    branch = Branch.objects.filter(project=project, id=branch_id, deleted_at=None).first()
    if branch is None:
        raise NotFound("branch not found")
    return branch


def get_branch(account: Account, project_id: str, branch_id: str) -> Branch:
    """The branch, with its pending state. Raises NotFound."""
    project = find_project(account, project_id)
    return _with_pending(project, [find_branch(project, branch_id)])[0]


def list_branches(account: Account, project_id: str, *, search: str = "") -> list[Branch]:
    """The project's branches, the last changed first. Raises NotFound."""
    project = find_project(account, project_id)
    branches = Branch.objects.filter(project=project, deleted_at=None)
    if search:
        branches = branches.filter(name__icontains=search)
    return _with_pending(project, list(branches.order_by("-updated_at", "id")))


def create_branch(
    account: Account,
    project_id: str,
    *,
    name: str | None,
    parent_id: str | None,
    protected: bool,
    endpoints: Sequence[Mapping[str, Any]],
) -> NewBranch:
    """A branch with all that is committed on its parent, and with an endpoint if asked.

    Without `parent_id` the parent is the default branch. Raises NotFound, Conflict, Locked,
    Invalid, Unprocessable.
    """
    if len(endpoints) > 1:
        raise Unprocessable("a branch has at most one read_write endpoint")
    for wanted in endpoints:
        check_limits(
            account,
            wanted.get("autoscaling_limit_min_cu"),
            wanted.get("autoscaling_limit_max_cu"),
        )
        check_pg_settings(wanted.get("settings", {}).get("pg_settings", {}))
    with changing_project(account, project_id) as project:
        parent = (
            find_branch(project, parent_id)
            if parent_id
            else Branch.objects.get(project=project, default=True, deleted_at=None)
        )
        refuse_while_deleting(project, parent)
        branch = Branch(
            project=project,
            parent=parent,
            protected=protected,
            catalog_revision=parent.catalog_revision,
        )
        branch.name = name or _free_name(project)
        refuse_taken_name(project, branch.name)
        branch.save(force_insert=True)
        _copy_catalog(parent, branch)
        steps = [Step(Action.CREATE_BRANCH, branch=branch, also_holds=[parent])]
        created = []
        for wanted in endpoints:
            endpoint = new_endpoint(project, branch)
            for attribute, value in wanted.items():
                setattr(endpoint, attribute, value)
            if "pg_settings" not in endpoint.settings:
                raise Invalid("settings must not be nil")
            check_limits(
                account, endpoint.autoscaling_limit_min_cu, endpoint.autoscaling_limit_max_cu
            )
            endpoint.save(force_insert=True)
            endpoint.pending_state = EndpointState.ACTIVE
            created.append(endpoint)
            steps.append(Step(Action.START_COMPUTE, branch=branch, endpoint=endpoint))
        operations = schedule(project, steps)
    branch.pending_state = BranchState.READY
    return NewBranch(branch, created, operations)


def update_branch(
    account: Account, project_id: str, branch_id: str, changes: Mapping[str, Any]
) -> Branch:
    """Rename or protect a branch. Raises NotFound, Conflict."""
    with changing_project(account, project_id) as project:
        branch = find_branch(project, branch_id)
        if changes.get("name", branch.name) != branch.name:
            refuse_taken_name(project, changes["name"])
        for attribute, value in changes.items():
            setattr(branch, attribute, value)
        branch.updated_at = timezone.now()
        branch.save(update_fields=[*changes, "updated_at"])
    return branch


def set_default_branch(account: Account, project_id: str, branch_id: str) -> Branch:
    """Raises NotFound, Unprocessable."""
    with changing_project(account, project_id) as project:
        branch = find_branch(project, branch_id)
        if branch.current_state != BranchState.READY:
            raise Unprocessable("branch not ready yet")
        refuse_while_deleting(project, branch)
        now = timezone.now()
        if not branch.default:
            Branch.objects.filter(project=project, default=True).update(
                default=False, updated_at=now
            )
            branch.default = True
            branch.updated_at = now
            branch.save(update_fields=["default", "updated_at"])
    return branch


def delete_branch(
    account: Account, project_id: str, branch_id: str
) -> tuple[Branch, list[Operation]]:
    """Delete a branch, its data and its endpoint; all are there until the operations end.

    Deleting again returns the operations that are under way. Raises NotFound, Unprocessable.
    """
    with changing_project(account, project_id) as project:
        branch = find_branch(project, branch_id)
        under_way = _deletion_of(project, branch)
        if under_way:
            return branch, under_way
        if branch.default:
            raise Unprocessable("the default branch cannot be deleted; set another one first")
        if branch.protected:
            raise Unprocessable("the branch is protected; end its protection first")
        children = Branch.objects.filter(parent=branch, deleted_at=None)
        if names := list(children.order_by("created_at").values_list("id", flat=True)[:5]):
            raise Unprocessable(f"the branch has children: {', '.join(names)}; delete them first")
        steps = []
        endpoint = Endpoint.objects.filter(branch=branch, deleted_at=None).first()
        if endpoint:
            steps.append(Step(Action.SUSPEND_COMPUTE, branch=branch, endpoint=endpoint))
        steps.append(Step(Action.DELETE_TIMELINE, branch=branch))
        return branch, schedule(project, steps)


def refuse_while_deleting(project: Project, branch: Branch) -> None:
    """Raises Locked where the branch is about to go."""
    if _deletion_of(project, branch):
        raise Locked


def refuse_taken_name(project: Project, name: str) -> None:
    """Raises Conflict."""
    if Branch.objects.filter(project=project, name=name, deleted_at=None).exists():
        raise Conflict(f'branch already exists; branch_name:"{name}"')


def _with_pending(project: Project, branches: list[Branch]) -> list[Branch]:
    being_created = {row.branch_id for row in unfinished(project.id) if row.action in MAKES_BRANCH}
    for branch in branches:
        if branch.id in being_created:
            branch.pending_state = BranchState.READY
    return branches


def _deletion_of(project: Project, branch: Branch) -> list[Operation]:
    operations = [row for row in unfinished(project.id) if row.branch_id == branch.id]
    for position, operation in enumerate(operations):
        if operation.action == Action.DELETE_TIMELINE:
            return [row for row in operations[: position + 1] if row.chain == operation.chain]
    return []


def _copy_catalog(parent: Branch, branch: Branch) -> None:
    """A child starts with its parent's roles, passwords and databases.

    Rows that wait to be dropped come too: the data may hold what they stand for.
    """
    roles, databases = list(parent.roles.all()), list(parent.databases.all())
    for role in roles:
        role.pk, role.branch = None, branch
    for database in databases:
        database.pk, database.branch = None, branch
    Role.objects.bulk_create(roles)
    Database.objects.bulk_create(databases)


def _free_name(project: Project) -> str:
    while True:
        name = f"branch-{secrets.token_hex(4)}"
        if not Branch.objects.filter(project=project, name=name).exists():
            return name
