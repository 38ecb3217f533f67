"""Branches: create, change, make default, delete. `branch_pages` lists them."""

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
    time_text,
)
from controlplane.events.recording import differences, record
from controlplane.models import (
    MAY_SUCCEED,
    Account,
    Branch,
    BranchState,
    Database,
    Endpoint,
    EndpointState,
    Masking,
    Operation,
    Project,
    RequestKind,
    Role,
)
from controlplane.models.consumption import with_consumed_branches
from controlplane.models.reading import Reading
from controlplane.operations.actions.table import MAKES_BRANCH, details_of
from controlplane.operations.details import CreateBranchDetails
from controlplane.operations.engine.replacing import is_replaced, replacement_of
from controlplane.operations.engine.scheduling import (
    IS_BUSY,
    deletion_of,
    deletion_refusal,
    schedule,
    schedule_deletion,
    unfinished,
    unfinished_if_busy,
)
from controlplane.operations.masked_data import make_secret
from controlplane.services.creation import creation_steps, make_branch, make_endpoint
from controlplane.services.errors import Conflict, Locked, NotFound, Unprocessable, taken_name
from controlplane.services.passwords import give_new_passwords
from controlplane.services.projects import changing_project, find_project
from controlplane.services.rules.branch_expiry import (
    NEVER,
    Expiry,
    refuse_impossible_expiry,
    refuse_to_depend_on,
    set_expiry,
)
from controlplane.services.rules.endpoint_attributes import EndpointAttributes
from controlplane.services.rules.history import PRESENT, MomentSpec

CatalogRow = TypeVar("CatalogRow", Role, Database)
BRANCH = Reading(
    Branch,
    """
    WHERE t.project_id = %(project)s AND t.id = %(branch)s
        AND t.deleted_at IS NULL AND NOT t.hidden
    """,
)
# Reads the branch and its project in one statement, the only one of most requests for a branch.
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
    # The default branch by default.
    parent_id: str | None = None
    # Of the parent.
    moment: MomentSpec = PRESENT
    protected: bool = False
    # Create a schema-only branch. `parent_id` then names its source, of which it is no child.
    schema_only: bool = False
    expiry: Expiry = NEVER
    annotation: Mapping[str, str] = field(default_factory=dict)
    endpoints: Sequence[EndpointAttributes] = ()
    # To mask the parent's values: rules as in the API; None for a branch that is not masked.
    masking_rules: Sequence[Mapping[str, Any]] | None = None
    # Whether to mask them now. Until then the branch has no data.
    starts_masking: bool = False


@dataclass(frozen=True, kw_only=True)
class BranchChanges:
    """What a request changes of a branch; None for what was not sent."""

    name: str | None = None
    protected: bool | None = None
    expiry: Expiry | None = None


# The columns that a change may set.
CHANGED = ("name", "protected", "expires_at", "ttl_interval_seconds")


@dataclass(frozen=True)
class NewBranch:
    """A new branch with its endpoint, if one was asked for, and the roles and databases that it has
    from its parent or source."""

    branch: Branch
    endpoints: list[Endpoint]
    roles: list[Role]
    databases: list[Database]
    operations: list[Operation]


def find_branch(project: Project, branch_id: str, *, field: str = "branch_id") -> Branch:
    """The project's branch with this id, which the request has in `field`. Raises NotFound if there
    is none, or it is deleted or hidden."""
    branch = BRANCH.first(project=project.id, branch=branch_id)
    if branch is None:
        raise NotFound("branch not found", fields=[field])
    branch.project = project
    return branch


def default_branch(project: Project) -> Branch:
    return Branch.objects.get(project=project, default=True, deleted_at=None)


def get_branch(account: Account, project_id: str, branch_id: str) -> Branch:
    """The branch, with its pending state and consumption. Raises NotFound."""
    branch = OWN_BRANCH.first(project=project_id, branch=branch_id, account=account.id)
    if branch is None:
        return find_branch(find_project(account, project_id), branch_id)
    branch.project.account = account
    return with_pending(branch.project, [branch], unfinished_if_busy(branch))[0]


def create_branch(account: Account, project_id: str, spec: BranchSpec) -> NewBranch:
    """Create a branch with all that is committed on its parent, or only with the schema of its
    source, and with an endpoint if one is asked for.

    Raises NotFound, Conflict, Locked, Invalid, Unprocessable.
    """
    if len(spec.endpoints) > 1:
        raise Unprocessable("a branch has at most one read_write endpoint", fields=["endpoints"])
    with changing_project(account, project_id) as project:
        if spec.parent_id:
            parent = find_branch(project, spec.parent_id, field="parent_id")
        else:
            parent = default_branch(project)
        earlier = unfinished(project.id)
        refuse_while_busy(parent, earlier)
        moment = spec.moment.of(parent)
        if spec.schema_only and moment:
            raise Unprocessable(
                "a schema-only branch is created from the present schema of its source: leave out "
                "parent_timestamp and parent_lsn, or create a branch of the moment first",
                fields=["init_source"],
            )
        is_masked = spec.masking_rules is not None
        if is_masked and (moment or spec.schema_only or parent.masked_as):
            raise Unprocessable(
                "an anonymized branch is created from the present data of a branch that is not "
                "anonymized",
                fields=["branch_create.branch"],
            )
        if not spec.schema_only:
            refuse_to_depend_on(parent, "a parent")
        if spec.name:
            refuse_taken_name(project, spec.name)
        roles, databases = copied_catalog(parent)
        # Passwords that are known for the copy of a protected branch, or for a masked one, must not
        # work for the original.
        gives = parent.protected or is_masked
        given = give_new_passwords(roles, store=project.store_passwords) if gives else []
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
            moment=moment,
            is_masked=is_masked,
        )
        if spec.masking_rules is not None:
            make_secret(project)
            Masking.objects.create(id=branch.id, project=project, rules=list(spec.masking_rules))
        endpoints, steps = [], [*creation_steps(parent, earlier), creation]
        for requested in spec.endpoints:
            endpoint, start = make_endpoint(project, branch, requested)
            endpoints.append(endpoint)
            steps += start
        if is_masked and not spec.starts_masking:
            branch.pending_state, steps = None, []
            for endpoint in endpoints:
                endpoint.current_state, endpoint.pending_state = EndpointState.IDLE, None
                endpoint.save(update_fields=["current_state"])
        title = f"Create branch {branch.name} with its endpoint" if endpoints else ""
        kind = RequestKind.CREATE_BRANCH
        operations = schedule(project, steps, kind, title=title) if steps else []
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
    """Change the attributes that were sent. Raises NotFound, Conflict, Locked, Unprocessable."""
    with changing_project(account, project_id) as project:
        branch = find_branch(project, branch_id)
        before = _event_fields(branch)
        if changes.name is not None and changes.name != branch.name:
            refuse_taken_name(project, changes.name)
            branch.name = changes.name
        if changes.protected is not None:
            branch.protected = changes.protected
        if changes.expiry is not None and set_expiry(branch, changes.expiry):
            # Its deletion may be under way already, for example because it has expired.
            refuse_while_deleting(branch, unfinished(project.id))
            refuse_impossible_expiry(branch)
        elif changes.protected:
            refuse_to_depend_on(branch, "protected")
        branch.updated_at = clock.now()
        branch.save(update_fields=[*CHANGED, "updated_at"])
        if changed := differences(before, _event_fields(branch)):
            record(branch_updated(project, branch, changed))
    with_consumed_branches([branch])
    return branch


def _event_fields(branch: Branch) -> dict[str, Any]:
    """The attributes of a branch that may be changed, as events show them."""
    return {
        "name": branch.name,
        "protected": branch.protected,
        "expires_at": time_text(branch.expires_at),
    }


def set_default_branch(account: Account, project_id: str, branch_id: str) -> Branch:
    """Make the branch the project's default branch. Raises NotFound, Locked, Unprocessable."""
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
    """Delete a branch, its data and its endpoint. They exist until the operations have ended.

    If the deletion is under way already, return its operations. Raises NotFound, Locked,
    Unprocessable.
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
    """Raises Unprocessable if the branch must not be deleted: it is the default branch, is
    protected or has children."""
    if reason := deletion_refusal(branch):
        raise Unprocessable(reason)


def refuse_while_deleting(branch: Branch, operations: Sequence[Operation]) -> None:
    """Raises Locked if one of the project's unfinished operations deletes the branch."""
    if deletion_of(branch, operations):
        raise Locked


def refuse_while_replaced(branch: Branch, operations: Sequence[Operation]) -> None:
    """Raises Locked if an unfinished operation replaces the branch's data, or moves another
    branch's replaced data to this branch. A change made meanwhile would be lost."""
    if is_replaced(branch, operations):
        raise Locked


def refuse_while_busy(branch: Branch, operations: Sequence[Operation]) -> None:
    """Both `refuse_while_deleting` and `refuse_while_replaced`."""
    refuse_while_deleting(branch, operations)
    refuse_while_replaced(branch, operations)


def refuse_while_restoring(branch: Branch, operations: Sequence[Operation]) -> None:
    """Raises Locked if an unfinished restore holds the branch, or the past of the branch is being
    recovered. After the restore the branch may be another branch's parent, which must not be
    deleted; and its history must stay while it is read, which holds nothing."""
    for row in operations:
        details = details_of(row.action, row.details)
        if isinstance(details, CreateBranchDetails) and (
            details.source_branch_id == branch.id
            or (details.kept_as and branch.id in row.resources)
        ):
            raise Locked


def refuse_taken_name(project: Project, name: str, *, field: str = "name") -> None:
    """Raises Conflict if a branch of the project has this name."""
    taken = Branch.objects.filter(project=project, name=name, deleted_at=None, hidden=False)
    if taken.exists():
        raise Conflict(
            f'branch already exists; branch_name:"{name}"',
            errors=[taken_name("branch", name, field)],
        )


def with_pending(
    project: Project, branches: list[Branch], operations: Sequence[Operation]
) -> list[Branch]:
    """Set `project`, `pending_state`, `is_resetting` and `consumed` of the branches, and return
    them. `operations` are the project's unfinished operations."""
    being_created: set[str | None] = set()
    replaced = set()
    for row in operations:
        if row.action in MAKES_BRANCH and row.status in MAY_SUCCEED:
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
    """The branch's roles and databases as new, unsaved rows for another branch. Deleted ones that
    were not dropped in the compute yet are included, because the copied data may contain them."""
    return (
        _copies(list(branch.roles.order_by("id"))),
        _copies(list(branch.databases.order_by("id"))),
    )


def _copies(rows: list[CatalogRow]) -> list[CatalogRow]:
    """Turn the rows into new, unsaved ones for another branch."""
    for row in rows:
        row.pk = None
    return rows


def free_name(project: Project) -> str:
    """An unused name for a branch for which the request gave none."""
    while True:
        name = f"branch-{secrets.token_hex(4)}"
        if not Branch.objects.filter(project=project, name=name).exists():
            return name
