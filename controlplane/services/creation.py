"""Creates the rows of branches and endpoints. All code that creates either uses this module.

`make_branch` and `make_endpoint` write the rows and return the steps that create the data or start
the compute. The caller holds the project's lock, or has created the project in the same
transaction, and schedules the steps.
"""

from collections.abc import Mapping, Sequence

from controlplane.compute.host.space import size_text
from controlplane.models import (
    ATTRIBUTES,
    MAY_SUCCEED,
    Action,
    Branch,
    BranchState,
    Database,
    Endpoint,
    EndpointState,
    InitSource,
    Operation,
    Project,
    Role,
)
from controlplane.operations.actions.table import MAKES_BRANCH
from controlplane.operations.details import CreateBranchDetails
from controlplane.operations.engine.scheduling import Step
from controlplane.services.errors import HostFull, Unprocessable
from controlplane.services.passwords import give_new_passwords
from controlplane.services.rules import plan_limits
from controlplane.services.rules.branch_expiry import (
    NEVER,
    Expiry,
    refuse_impossible_expiry,
    set_expiry,
)
from controlplane.services.rules.endpoint_attributes import (
    EndpointAttributes,
    assign_attributes,
    check_endpoint,
    with_defaults,
)
from controlplane.services.rules.history import PastMoment
from controlplane.services.rules.plan_limits import refuse_used_up


def make_branch(
    project: Project,
    *,
    name: str,
    parent: Branch | None,
    protected: bool,
    roles: Sequence[Role],
    databases: Sequence[Database],
    schema_of: Branch | None = None,
    snapshot: Branch | None = None,
    hidden: bool = False,
    is_time_travel: bool = False,
    expiry: Expiry = NEVER,
    annotation: Mapping[str, str] | None = None,
    moment: PastMoment | None = None,
    is_masked: bool = False,
) -> tuple[Branch, Step]:
    """Write the row of a branch, with the given unsaved roles and databases. Returns the branch and
    the step that creates its data.

    The data is a copy of `parent`, as it is or as it was at `moment`, or of a snapshot's branch
    (`snapshot`), or only the schema of `schema_of`. Without any of these the branch is the
    project's first, and its default branch. A hidden branch has its id as its name. `is_masked` is
    for a copy whose values are to be masked.

    The caller has checked that the name is free and that the parent is not being deleted. Raises
    HostFull, Unprocessable if the account's plan allows no more or the branch cannot expire, and
    Locked if too many hidden branches wait to be removed.
    """
    _require_room(project, hidden=hidden)
    source = schema_of or parent or snapshot
    branch = Branch(
        project=project,
        name=name,
        parent=parent,
        schema_of=schema_of,
        init_source=InitSource.SCHEMA_ONLY if schema_of else InitSource.PARENT_DATA,
        default=source is None,
        protected=protected,
        annotation_value=dict(annotation or {}),
        catalog_revision=_revision_of_child(source, roles) if source else 1,
        hidden=hidden,
        is_time_travel=is_time_travel,
        masked_as=source.masked_as if source else None,
    )
    if is_masked:
        branch.masked_as = branch.id
    if moment is not None:
        branch.parent_timestamp, branch.parent_lsn = moment.at, moment.lsn
    if hidden:
        branch.name = branch.id
    if set_expiry(branch, expiry):
        refuse_impossible_expiry(branch)
    branch.save(force_insert=True)
    for role in roles:
        role.branch = branch
    for database in databases:
        database.branch = branch
    Role.objects.bulk_create(roles)
    Database.objects.bulk_create(databases)
    branch.pending_state = BranchState.READY
    return branch, _creation_of(branch, snapshot)


def make_kept_branch(project: Project, branch: Branch, *, name: str | None) -> Branch:
    """Write the row of the branch that will get the present data of `branch` when that is replaced.
    Without a name it is a hidden branch, which a round removes. It gets its roles and databases
    together with the data.

    The caller has checked that the name is free. Raises HostFull, Unprocessable, Locked.
    """
    _require_room(project, hidden=name is None)
    kept = Branch(project=project, parent=branch.parent, hidden=name is None)
    kept.name = kept.id if name is None else name
    kept.save(force_insert=True)
    return kept


def _revision_of_child(parent: Branch, roles: Sequence[Role]) -> int:
    """The catalog revision of a child: the parent's, plus one if the child's roles have new
    passwords that must be applied to the copied data."""
    return parent.catalog_revision + any(role.password_is_newer for role in roles)


def creation_steps(
    branch: Branch, operations: Sequence[Operation], *, begins_masking: bool = False
) -> list[Step]:
    """The steps that create a branch again whose creation has failed, and before it those of its
    ancestors whose creation has failed too. There are none if the branch exists, or one of the
    project's unfinished `operations` creates it. If its creation is being cancelled, the new steps
    run after that.

    The caller holds the project's lock, and schedules the steps before those that need the branch.
    """
    under_way = {
        row.branch_id
        for row in operations
        if row.action in MAKES_BRANCH and row.status in MAY_SUCCEED
    }
    steps: list[Step] = []
    missing: Branch | None = branch
    while missing and missing.current_state != BranchState.READY and missing.id not in under_way:
        steps.insert(0, _creation_of(missing, _snapshot_of(missing)))
        missing = missing.source
    for step in steps:
        assert step.branch is not None
        if not begins_masking and awaits_masking(step.branch):
            raise Unprocessable(
                f'the data of the branch "{step.branch.name}" is not masked yet: start that with '
                f"POST /projects/{step.branch.project_id}/branches/{step.branch.id}/anonymize"
            )
        if step.branch.source:
            _take_over_catalog(step.branch, step.branch.source)
    return steps


def awaits_masking(branch: Branch) -> bool:
    """Whether the branch is to be masked, and nobody has asked to begin with that yet."""
    made = Operation.objects.filter(branch=branch, action=Action.CREATE_BRANCH)
    return (
        branch.masked_as == branch.id
        and branch.current_state != BranchState.READY
        and not made.exists()
    )


def _take_over_catalog(branch: Branch, source: Branch) -> None:
    """Add to a branch whose creation failed the roles and databases that its source has got since,
    because the copy will contain them."""
    roles = list(source.roles.exclude(name__in=branch.roles.values("name")).order_by("id"))
    known = {name for row in branch.databases.all() for name in (row.name, row.applied_name)}
    databases = list(source.databases.exclude(name__in=known - {None}).order_by("id"))
    if source.protected:
        # Passwords that are known for the copy of a protected branch must not work for the
        # original.
        give_new_passwords(roles, store=branch.project.store_passwords)
    rows: list[Role | Database] = [*roles, *databases]
    for row in rows:
        row.pk, row.branch = None, branch
    Role.objects.bulk_create(roles)
    Database.objects.bulk_create(databases)


def _require_room(project: Project, *, hidden: bool) -> None:
    """Raises HostFull if the disk space that the host's worker has published is too small, and what
    the account's plan says of one more branch."""
    host = project.host
    if host.is_full:
        raise HostFull(
            f'the host "{host.id}" has no room for new branches: its disk has '
            f"{size_text(host.disk_free_bytes or 0)} free, less than the reserve of "
            f"{size_text(host.disk_reserve_bytes or 0)}; delete branches that are not needed, "
            "or try again later"
        )
    if hidden:
        plan_limits.check_removed_branches(project)
    else:
        branches = Branch.objects.filter(project=project, deleted_at=None, hidden=False)
        plan_limits.check_one_more(project.account, branches)


def _snapshot_of(branch: Branch) -> Branch | None:
    """The snapshot's branch from which the branch was to be created; None if it was not created
    from a snapshot."""
    made = Operation.objects.filter(branch=branch, action=Action.CREATE_BRANCH)
    first = None if branch.source else made.order_by("created_at").first()
    if first is None:
        return None
    return Branch.objects.filter(id=first.details.get("source_branch_id")).first()


def _creation_of(branch: Branch, snapshot: Branch | None) -> Step:
    if branch.is_of_the_past:
        # Does not hold the parent: only its history is read, under a lock of its own.
        assert branch.parent is not None
        moment = PastMoment(branch.parent_timestamp, branch.parent_lsn)
        details = moment.details(branch.parent)
        return Step(Action.CREATE_BRANCH, branch=branch, details=details)
    if snapshot is not None:
        details = CreateBranchDetails(source_branch_id=snapshot.id)
        return Step(Action.CREATE_BRANCH, branch=branch, also_holds=[snapshot], details=details)
    is_first = branch.parent is None and branch.init_source == InitSource.PARENT_DATA
    held = [branch.source] if branch.source else []
    action = Action.CREATE_TIMELINE if is_first else Action.CREATE_BRANCH
    return Step(action, branch=branch, also_holds=held)


def make_endpoint(
    project: Project, branch: Branch, requested: EndpointAttributes
) -> tuple[Endpoint, list[Step]]:
    """Write the row of an endpoint with the requested attributes, and the project's defaults for
    all others. Returns the endpoint and the steps that start it.

    A disabled endpoint is idle from the beginning, and there are no steps. The caller has checked
    that the branch has no endpoint and is not being deleted. Raises Invalid, Unprocessable,
    QuotaExceeded.
    """
    endpoints = Endpoint.objects.filter(project=project, deleted_at=None)
    plan_limits.check_one_more(project.account, endpoints)
    endpoint = Endpoint(project=project, branch=branch, settings={"pg_settings": {}})
    assign_attributes(endpoint, with_defaults(project, requested))
    check_endpoint(endpoint, ATTRIBUTES)
    if endpoint.disabled:
        endpoint.current_state = EndpointState.IDLE
        endpoint.save(force_insert=True)
        return endpoint, []
    refuse_used_up(project, branch)
    endpoint.save(force_insert=True)
    endpoint.pending_state = EndpointState.ACTIVE
    return endpoint, [Step(Action.START_COMPUTE, branch=branch, endpoint=endpoint)]
