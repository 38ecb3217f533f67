"""How a branch and an endpoint come to be: the one maker of each.

Both write their rows and return the steps that bring these about. The caller holds the
project's lock, or has made the project in the same transaction, and schedules the steps.
"""

from collections.abc import Mapping, Sequence

from controlplane.compute.space import in_words
from controlplane.models import (
    HOPEFUL,
    Action,
    Branch,
    BranchState,
    Database,
    Endpoint,
    EndpointState,
    InitSource,
    Operation,
    Project,
    Region,
    Role,
)
from controlplane.operations.actions import MAKES_BRANCH
from controlplane.operations.details import CreateBranchDetails
from controlplane.operations.scheduling import Step
from controlplane.services import plan_limits
from controlplane.services.branch_expiry import (
    NEVER,
    Expiry,
    refuse_impossible_expiry,
    set_expiry,
)
from controlplane.services.endpoint_attributes import (
    ATTRIBUTES,
    EndpointAttributes,
    assign_attributes,
    check_endpoint,
    with_defaults,
)
from controlplane.services.errors import RegionFull
from controlplane.services.passwords import give_new_passwords
from controlplane.services.quotas import refuse_used_up


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
    expiry: Expiry = NEVER,
    annotation: Mapping[str, str] | None = None,
) -> tuple[Branch, Step]:
    """A branch with these roles and databases, unsaved as yet: with the data of its parent, or of a
    snapshot's branch, or with the schema alone of another; without any of these, the project's
    first and its default. A hidden one has no name of its own.

    The caller has made sure that the name is free and that the parent stays. Raises RegionFull,
    Unprocessable where the account's plan allows no more, or the branch could not expire, Locked.
    """
    _refuse_without_room(project.region)
    if hidden:
        plan_limits.check_removed_branches(project)
    else:
        plan_limits.check_branches(project)
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
    )
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
    """The branch that is to have the data of `branch` once that is replaced; without a name it is
    hidden, and goes by itself. It gets all else with the data.

    The caller has made sure that the name is free. Raises RegionFull, Unprocessable, Locked.
    """
    _refuse_without_room(project.region)
    if name is None:
        plan_limits.check_removed_branches(project)
    else:
        plan_limits.check_branches(project)
    kept = Branch(project=project, parent=branch.parent, hidden=name is None)
    kept.name = kept.id if name is None else name
    kept.save(force_insert=True)
    return kept


def _revision_of_child(parent: Branch, roles: Sequence[Role]) -> int:
    """Beyond the parent's where the copy of its data is yet to learn of the child's passwords."""
    return parent.catalog_revision + any(role.password_is_newer for role in roles)


def creation_again(branch: Branch, operations: Sequence[Operation]) -> list[Step]:
    """The steps that make a branch, and those it descends from, whose creation has failed; none
    where it is there, or on its way by the project's unfinished `operations`. One whose creation
    is being cancelled is made again behind that.

    The caller holds the project's lock, and schedules them before whatever needs the branch.
    """
    under_way = {
        row.branch_id for row in operations if row.action in MAKES_BRANCH and row.status in HOPEFUL
    }
    steps: list[Step] = []
    missing: Branch | None = branch
    while missing and missing.current_state != BranchState.READY and missing.id not in under_way:
        steps.insert(0, _creation_of(missing, _snapshot_of(missing)))
        missing = missing.source
    for step in steps:
        if step.branch and step.branch.source:
            _take_over_catalog(step.branch, step.branch.source)
    return steps


def _take_over_catalog(branch: Branch, source: Branch) -> None:
    """Give a branch that was not made the roles and databases that its source has by now, and it
    does not know: the copy will hold them."""
    roles = list(source.roles.exclude(name__in=branch.roles.values("name")).order_by("id"))
    known = {name for row in branch.databases.all() for name in (row.name, row.applied_name)}
    databases = list(source.databases.exclude(name__in=known - {None}).order_by("id"))
    if source.protected:
        # Whoever gets a copy of what is protected is to get no way to the original with it.
        give_new_passwords(roles, store=branch.project.store_passwords)
    rows: list[Role | Database] = [*roles, *databases]
    for row in rows:
        row.pk, row.branch = None, branch
    Role.objects.bulk_create(roles)
    Database.objects.bulk_create(databases)


def _refuse_without_room(region: Region) -> None:
    """Raises RegionFull, by what the region's worker has published."""
    if region.is_full:
        raise RegionFull(
            f'the region "{region.id}" has no room for new branches: its disk has '
            f"{in_words(region.disk_free_bytes or 0)} free, less than the reserve of "
            f"{in_words(region.disk_reserve_bytes or 0)}; delete what is not needed, or try later"
        )


def _snapshot_of(branch: Branch) -> Branch | None:
    """The snapshot's branch that a branch was to be made of; None where it is none of those."""
    made = Operation.objects.filter(branch=branch, action=Action.CREATE_BRANCH)
    first = None if branch.source else made.order_by("created_at").first()
    if first is None:
        return None
    return Branch.objects.filter(id=first.details.get("source_branch_id")).first()


def _creation_of(branch: Branch, snapshot: Branch | None) -> Step:
    if snapshot is not None:
        details = CreateBranchDetails(source_branch_id=snapshot.id)
        return Step(Action.CREATE_BRANCH, branch=branch, also_holds=[snapshot], details=details)
    is_first = branch.parent is None and branch.init_source == InitSource.PARENT_DATA
    held = [branch.source] if branch.source else []
    action = Action.CREATE_TIMELINE if is_first else Action.CREATE_BRANCH
    return Step(action, branch=branch, also_holds=held)


def make_endpoint(
    project: Project, branch: Branch, asked: EndpointAttributes
) -> tuple[Endpoint, list[Step]]:
    """An endpoint of the project's defaults and what was asked for, which stands above them.

    A disabled one is idle from the first, and nothing starts it. The caller has made sure
    that the branch has no endpoint and stays. Raises Invalid, Unprocessable, QuotaExceeded.
    """
    plan_limits.check_endpoints(project)
    endpoint = Endpoint(project=project, branch=branch, settings={"pg_settings": {}})
    assign_attributes(endpoint, with_defaults(project, asked))
    check_endpoint(endpoint, ATTRIBUTES)
    if endpoint.disabled:
        endpoint.current_state = EndpointState.IDLE
        endpoint.save(force_insert=True)
        return endpoint, []
    refuse_used_up(project, branch)
    endpoint.save(force_insert=True)
    endpoint.pending_state = EndpointState.ACTIVE
    return endpoint, [Step(Action.START_COMPUTE, branch=branch, endpoint=endpoint)]
