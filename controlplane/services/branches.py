"""Branches: create, change, make default, delete. Their lists are in `branch_pages`."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from controlplane import clock
from controlplane.events.catalog import password_reset
from controlplane.events.changes import (
    branch_created,
    branch_deletion_requested,
    branch_updated,
    endpoint_created,
    time_told,
)
from controlplane.events.differences import differences
from controlplane.events.recording import record
from controlplane.models import (
    HOPEFUL,
    Account,
    Branch,
    BranchState,
    Database,
    Endpoint,
    Operation,
    Project,
    Role,
)
from controlplane.models.consumption import with_consumed_branches
from controlplane.models.reading import Reading
from controlplane.operations.actions import MAKES_BRANCH
from controlplane.operations.branch_deletion import deletion_of, schedule_deletion, why_it_stays
from controlplane.operations.replacing import is_replaced, replacement_of
from controlplane.operations.scheduling import (
    IS_BUSY,
    schedule,
    unfinished,
    unfinished_if_busy,
)
from controlplane.services.branch_expiry import (
    NEVER,
    Expiry,
    refuse_impossible_expiry,
    refuse_to_depend_on,
    set_expiry,
)
from controlplane.services.creation import creation_again, make_branch, make_endpoint
from controlplane.services.endpoint_attributes import EndpointAttributes
from controlplane.services.errors import Conflict, Locked, NotFound, Unprocessable
from controlplane.services.passwords import give_new_passwords
from controlplane.services.projects import changing_project, find_project

CatalogRow = TypeVar("CatalogRow", Role, Database)
BRANCH = Reading(
    Branch,
    """
    WHERE t.project_id = %(project)s AND t.id = %(branch)s
        AND t.deleted_at IS NULL AND NOT t.hidden
    """,
)
# In one statement with its project: who reads a branch asks for nothing else.
OWN_BRANCH = Reading(
    Branch,
    """
    WHERE t.project_id = %(project)s AND t.id = %(branch)s
        AND t.deleted_at IS NULL AND NOT t.hidden
        AND project.account_id = %(account)s AND project.deleted_at IS NULL
    """,
    joined=["project"],
    extra=IS_BUSY,
)
BRANCHES = Reading(
    Branch,
    """
    WHERE t.project_id = %(project)s AND t.deleted_at IS NULL AND NOT t.hidden
    ORDER BY t.updated_at DESC, t.id DESC LIMIT %(limit)s
    """,
    extra=IS_BUSY,
)


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
    # Without rows: it is made with the parent's schema alone, and is no child of it.
    schema_only: bool = False
    expiry: Expiry = NEVER
    annotation: Mapping[str, str] = field(default_factory=dict)
    endpoints: Sequence[EndpointAttributes] = ()


@dataclass(frozen=True, kw_only=True)
class BranchChanges:
    """What a request changes of a branch; None for what was not sent."""

    name: str | None = None
    protected: bool | None = None
    expiry: Expiry | None = None


# The columns of what may be changed.
CHANGED = ("name", "protected", "expires_at", "ttl_interval_seconds")


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
    branch = BRANCH.first(project=project.id, branch=branch_id)
    if branch is None:
        raise NotFound("branch not found")
    branch.project = project
    return branch


def default_branch(project: Project) -> Branch:
    return Branch.objects.get(project=project, default=True, deleted_at=None)


def get_branch(account: Account, project_id: str, branch_id: str) -> Branch:
    """The branch, with its pending state. Raises NotFound."""
    branch = OWN_BRANCH.first(project=project_id, branch=branch_id, account=account.id)
    if branch is None:
        return find_branch(find_project(account, project_id), branch_id)
    branch.project.account = account
    return with_pending(branch.project, [branch], unfinished_if_busy(branch))[0]


def create_branch(account: Account, project_id: str, spec: BranchSpec) -> NewBranch:
    """A branch with all that is committed on its parent, or with its schema, and with an endpoint
    if asked.

    Raises NotFound, Conflict, Locked, Invalid, Unprocessable.
    """
    if spec.parent_lsn or spec.parent_timestamp:
        field = "parent_lsn" if spec.parent_lsn else "parent_timestamp"
        raise Unprocessable(
            f"branch.{field} is not offered by this server: a branch is made of its parent's "
            "present state, not of a point in the past",
            code="NOT_OFFERED",
        )
    if len(spec.endpoints) > 1:
        raise Unprocessable("a branch has at most one read_write endpoint")
    with changing_project(account, project_id) as project:
        parent = find_branch(project, spec.parent_id) if spec.parent_id else default_branch(project)
        earlier = unfinished(project.id)
        refuse_while_deleting(parent, earlier)
        refuse_while_replaced(parent, earlier)
        if not spec.schema_only:
            refuse_to_depend_on(parent, "a parent")
        if spec.name:
            refuse_taken_name(project, spec.name)
        roles, databases = copied_catalog(parent)
        # Whoever gets a copy of what is protected is to get no way to the original with it.
        given = give_new_passwords(roles, store=project.store_passwords) if parent.protected else []
        branch, creation = make_branch(
            project,
            name=spec.name or free_name(project),
            parent=None if spec.schema_only else parent,
            schema_of=parent if spec.schema_only else None,
            protected=spec.protected,
            roles=roles,
            databases=databases,
            expiry=spec.expiry,
            annotation=spec.annotation,
        )
        endpoints, steps = [], [*creation_again(parent, earlier), creation]
        for asked in spec.endpoints:
            endpoint, start = make_endpoint(project, branch, asked)
            endpoints.append(endpoint)
            steps += start
        operations = schedule(project, steps)
        record(branch_created(project, branch, operations))
        record(*(password_reset(project, branch, role) for role in given))
        record(*(endpoint_created(project, endpoint, operations) for endpoint in endpoints))
    return NewBranch(
        branch,
        endpoints,
        [role for role in roles if role.deleted_at is None],
        [database for database in databases if database.deleted_at is None],
        operations,
    )


def update_branch(
    account: Account, project_id: str, branch_id: str, changes: BranchChanges
) -> Branch:
    """Change what was sent. Raises NotFound, Conflict, Locked, Unprocessable."""
    with changing_project(account, project_id) as project:
        branch = find_branch(project, branch_id)
        before = _told_of(branch)
        if changes.name is not None and changes.name != branch.name:
            refuse_taken_name(project, changes.name)
            branch.name = changes.name
        if changes.protected is not None:
            branch.protected = changes.protected
        if changes.expiry is not None and set_expiry(branch, changes.expiry):
            # Its deletion is under way already, perhaps as its time has come.
            refuse_while_deleting(branch, unfinished(project.id))
            refuse_impossible_expiry(branch)
        elif changes.protected:
            refuse_to_depend_on(branch, "protected")
        branch.updated_at = clock.now()
        branch.save(update_fields=[*CHANGED, "updated_at"])
        if changed := differences(before, _told_of(branch)):
            record(branch_updated(project, branch, changed))
    with_consumed_branches([branch])
    return branch


def _told_of(branch: Branch) -> dict[str, Any]:
    """What of a branch may be changed."""
    return {
        "name": branch.name,
        "protected": branch.protected,
        "expires_at": time_told(branch.expires_at),
    }


def set_default_branch(account: Account, project_id: str, branch_id: str) -> Branch:
    """Raises NotFound, Unprocessable."""
    with changing_project(account, project_id) as project:
        branch = find_branch(project, branch_id)
        if branch.current_state != BranchState.READY:
            raise Unprocessable("branch not ready yet")
        refuse_while_deleting(branch, unfinished(project.id))
        refuse_to_depend_on(branch, "the default")
        now = clock.now()
        if not branch.default:
            _set_default(project, branch, now)
    with_consumed_branches([branch])
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
        with_consumed_branches([branch])
        earlier = unfinished(project.id)
        under_way = deletion_of(branch, earlier)
        if under_way:
            return branch, under_way
        refuse_while_restoring(branch, earlier)
        refuse_deletion(branch)
        operations = schedule_deletion(project, branch)
        record(branch_deletion_requested(project, branch, operations))
        return branch, operations


def refuse_deletion(branch: Branch) -> None:
    """Raises Unprocessable where the branch must stay."""
    if reason := why_it_stays(branch):
        raise Unprocessable(reason)


def refuse_while_deleting(branch: Branch, operations: Sequence[Operation]) -> None:
    """Raises Locked where the branch is about to go, by its project's unfinished operations."""
    if deletion_of(branch, operations):
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


def with_pending(
    project: Project, branches: list[Branch], operations: Sequence[Operation]
) -> list[Branch]:
    """The project's branches, each with where its unfinished operations lead."""
    being_created: set[str | None] = set()
    replaced = set()
    for row in operations:
        if row.action in MAKES_BRANCH and row.status in HOPEFUL:
            being_created.add(row.branch_id)
            if details := replacement_of(row):
                replaced.add(row.branch_id)
                being_created.add(details.kept_as)
    for branch in branches:
        branch.project = project
        if branch.id in being_created:
            branch.pending_state = BranchState.READY
        branch.is_resetting = branch.id in replaced
    with_consumed_branches(branches)
    return branches


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
