"""Projects: create, find, list, delete. `project_changes` changes them."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q, QuerySet

from controlplane import clock
from controlplane.compute.settings.configuration import LOCALE
from controlplane.events.catalog import database_created, role_created
from controlplane.events.changes import (
    branch_created,
    endpoint_created,
    project_created,
    project_deleted,
)
from controlplane.events.recording import record, together
from controlplane.models import (
    DEFAULT_PROVISIONER,
    Account,
    Action,
    Branch,
    Database,
    Endpoint,
    Operation,
    OperationStatus,
    Project,
    Region,
    RequestKind,
    Role,
)
from controlplane.models.consumed import period_of
from controlplane.models.consumption import (
    FIELDS,
    JOINED_TOTALS,
    set_consumed,
    with_consumed_projects,
)
from controlplane.models.reading import Reading
from controlplane.operations.engine.execution import withdraw
from controlplane.operations.engine.replacing import give_up_replacing
from controlplane.operations.engine.scheduling import Step, schedule
from controlplane.services.creation import make_branch, make_endpoint
from controlplane.services.errors import (
    Invalid,
    Locked,
    NotFound,
    Unprocessable,
    locking_within_bound,
)
from controlplane.services.passwords import encrypt, new_password, scram_verifier
from controlplane.services.rules import plan_limits
from controlplane.services.rules.endpoint_attributes import (
    EndpointAttributes,
    check_defaults,
    check_json_size,
    merged_defaults,
)
from controlplane.services.rules.placement import choose_host
from controlplane.services.rules.project_settings import (
    ProjectSettings,
    check_durability,
    merged_project_settings,
)
from controlplane.services.rules.reserved_names import check_name


@dataclass(frozen=True, kw_only=True)
class ProjectSpec:
    """What a request asks of a new project; None leaves the choice to the service."""

    name: str | None = None
    region_id: str | None = None
    pg_version: int | None = None
    provisioner: str | None = None
    # The organization that owns the project: any other than the account's own is refused.
    org_id: str | None = None
    branch_name: str = "main"
    role_name: str | None = None
    database_name: str = "neondb"
    endpoint_defaults: EndpointAttributes = field(default_factory=EndpointAttributes)
    settings: ProjectSettings = field(default_factory=ProjectSettings)
    history_retention_seconds: int = 86400
    store_passwords: bool = True


@dataclass(frozen=True)
class NewProject:
    """A new project with everything that was created with it. `password` is the role's, which is
    shown once."""

    project: Project
    branch: Branch
    endpoint: Endpoint
    role: Role
    password: str
    database: Database
    operations: list[Operation]


# The refusal of a request that could not get the project's lock.
BUSY_PROJECT = "other requests are changing the project; try again"
# Seconds that a request tries to get the project's lock.
LOCK_TIMEOUT = 15.0
OWN = "WHERE t.id = %(project)s AND t.account_id = %(account)s AND t.deleted_at IS NULL"
PROJECT = Reading(Project, OWN, joined=["host", "region"])
# With what its branches have consumed since `start`.
PROJECT_AND_TOTALS = Reading(
    Project,
    f"{JOINED_TOTALS} {OWN}",
    joined=["host", "region"],
    extra={name: f"c.{name}" for name in FIELDS},
)
FIRST_PROJECTS = Reading(
    Project,
    """
    WHERE t.account_id = %(account)s AND t.deleted_at IS NULL
    ORDER BY t.created_at DESC, t.id LIMIT %(limit)s
    """,
    joined=["host", "region"],
)


def find_project(account: Account, project_id: str) -> Project:
    """The account's project with this id. Raises NotFound, also for another account's project."""
    return _own(PROJECT, account, project_id)


def _own(reading: Reading[Project], account: Account, project_id: str, **values: Any) -> Project:
    own = {"project": project_id, "account": account.id}
    row = reading.first({"account": account}, **own, **values)
    if row is None:
        raise NotFound("project not found", fields=["project_id"])
    return row


def get_project(account: Account, project_id: str) -> Project:
    """The project, with what its branches have consumed. Raises NotFound."""
    project = _own(PROJECT_AND_TOTALS, account, project_id, start=period_of(clock.now()))
    set_consumed(project)
    return project


@contextmanager
def changing_project(account: Account, project_id: str) -> Iterator[Project]:
    """A transaction that holds the project's lock, in which the project may be changed. Told
    events are written at its end. Raises NotFound, Locked."""
    with locking_project(account, project_id) as project:
        if project.deleted_at is not None:
            raise NotFound("project not found", fields=["project_id"])
        yield project


@contextmanager
def locking_project(account: Account, project_id: str) -> Iterator[Project]:
    """As `changing_project`, but the project may be a deleted one.

    The lock is waited for longer than for one statement: if the machine is busy, the worker's
    operations of the project may hold it for seconds in all. Raises NotFound, Locked.
    """
    until = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            with ExitStack() as attempt:
                attempt.enter_context(transaction.atomic())
                attempt.enter_context(together())
                project = lock_project(account, project_id)
                locked = attempt.pop_all()
                break
        except Locked:
            if time.monotonic() >= until:
                raise
    with locked:
        yield project


def list_projects(
    account: Account,
    *,
    after: str | None,
    limit: int,
    search: str = "",
    only: str | None = None,
    recoverable: bool = False,
    org_id: str | None = None,
    timeout: float | None = None,
) -> list[Project]:
    """The account's projects, newest first: at most `limit` that follow the project with the id
    `after`. `search` selects by a part of the name or the whole id, and `only` by the id.
    With `recoverable`, list the deleted projects that can be recovered instead.

    If `timeout` is given, the query may take at most so many seconds. Raises Invalid, NotFound for
    the organization of another account, OperationalError if the query takes longer.
    """
    check_organization(account, org_id)
    if after is None and only is None and not search and not recoverable and timeout is None:
        first = FIRST_PROJECTS.rows({"account": account}, account=account.id, limit=limit)
        return list(with_consumed_projects(first))
    listed = Q(recoverable_until__gt=clock.now()) if recoverable else Q(deleted_at=None)
    projects = _projects_of(account).filter(listed).order_by("-created_at", "id")
    if only is not None:
        projects = projects.filter(id=only)
    if search:
        projects = projects.filter(Q(name__icontains=search) | Q(id=search))
    if after:
        # The cursor stays valid if its project was deleted, so that reading page by page does not
        # break.
        last = Project.objects.filter(account=account, id=after).first()
        if last is None:
            raise Invalid("invalid cursor: no such project", fields=["cursor"])
        projects = projects.filter(
            Q(created_at__lt=last.created_at) | Q(created_at=last.created_at, id__gt=last.id)
        )
    if timeout is None:
        return list(with_consumed_projects(list(projects[:limit])))
    with transaction.atomic(), connection.cursor() as cursor:
        # Only for this transaction, and not longer than the timeout of every statement.
        cursor.execute(
            "SELECT set_config('statement_timeout', least(%s, nullif(setting::int, 0))::text, true)"
            " FROM pg_settings WHERE name = 'statement_timeout'",
            [round(timeout * 1000)],
        )
        return list(with_consumed_projects(list(projects[:limit])))


def create_project(account: Account, spec: ProjectSpec) -> NewProject:
    """Create a project with its default branch, that branch's endpoint, a role and a database.

    Raises NotFound for the organization of another account, Invalid, Unprocessable, Locked,
    TooManyAtOnce, HostFull, HostAway.
    """
    check_organization(account, spec.org_id)
    owner = spec.role_name or _owner_of(spec.database_name)
    check_name("role", owner, field="role_name")
    check_name("database", spec.database_name, field="database_name")
    project = _new_project(account, spec)
    password = new_password()
    role = Role(
        name=owner,
        verifier=scram_verifier(password),
        encrypted_password=encrypt(password) if spec.store_passwords else "",
    )
    database = Database(name=spec.database_name, owner_name=owner)
    # The project is not visible to other transactions before this commits, so it needs no lock.
    with transaction.atomic():
        plan_limits.check_projects(account)
        plan_limits.check_deleted_projects(account)
        project.save(force_insert=True)
        branch, creation = make_branch(
            project,
            name=spec.branch_name,
            parent=None,
            protected=False,
            roles=[role],
            databases=[database],
        )
        endpoint, start = make_endpoint(project, branch, EndpointAttributes())
        operations = schedule(project, [creation, *start], RequestKind.CREATE_PROJECT)
        record(
            project_created(project, operations),
            branch_created(project, branch, operations),
            endpoint_created(project, endpoint, operations),
            role_created(project, branch, role),
            database_created(project, branch, database),
        )
    return NewProject(project, branch, endpoint, role, password, database, operations)


def _new_project(account: Account, spec: ProjectSpec) -> Project:
    """The project's row, unsaved. Raises Invalid, Unprocessable."""
    defaults = merged_defaults({}, spec.endpoint_defaults)
    region = _find_region(spec.region_id)
    host, pg_version = choose_host(
        region,
        pg_version=spec.pg_version,
        needs_pooler=bool(defaults.get("pooler_enabled") or defaults.get("pgbouncer_settings")),
        needs_filter=bool(spec.settings.block_outbound_connections),
    )
    project = Project(
        account=account,
        region=region,
        host=host,
        pg_version=pg_version,
        locale=LOCALE,
        provisioner=spec.provisioner or DEFAULT_PROVISIONER,
        default_endpoint_settings=defaults,
        settings=merged_project_settings({}, spec.settings, host=host),
        history_retention_seconds=spec.history_retention_seconds,
        store_passwords=spec.store_passwords,
    )
    project.name = spec.name or project.id
    check_defaults(project)
    check_json_size("settings", project.settings)
    check_durability(project.settings, spec.history_retention_seconds)
    plan_limits.check_history(account, spec.history_retention_seconds)
    return project


def delete_project(account: Account, project_id: str, *, even_protected: bool = False) -> Project:
    """Delete the project. Callers do not see it from now on. Its data is removed by an operation,
    which is scheduled now if RECOVERY_HOURS is 0, else when the time is over in which the project
    can be recovered (`services.project_changes`).

    Deleting it again returns the same. Raises NotFound, Locked, HostAway; Unprocessable if one of
    its branches is protected, unless `even_protected`.
    """
    with locking_project(account, project_id) as project:
        if project.deleted_at is not None:
            return project
        if not even_protected:
            _refuse_protected(project)
        now = clock.now()
        waiting = Operation.objects.filter(project=project, status=OperationStatus.SCHEDULING)
        given_up = list(waiting)
        withdraw(given_up, OperationStatus.FAILED, "the project was deleted")
        project.deleted_at = project.updated_at = now
        if settings.RECOVERY_HOURS > 0:
            project.recoverable_until = now + timedelta(hours=settings.RECOVERY_HOURS)
        project.save(update_fields=["deleted_at", "updated_at", "recoverable_until"])
        # The reconciler stops their computes.
        Endpoint.objects.filter(project=project, deleted_at=None).update(deleted_at=now)
        operations = []
        if project.recoverable_until is None:
            operations = schedule(project, [Step(Action.DELETE_TENANT, holds_project=True)])
        for operation in given_up:
            give_up_replacing(operation)
        record(project_deleted(project, operations))
        with_consumed_projects([project])
    return project


def _refuse_protected(project: Project) -> None:
    """Raises Unprocessable if one of its branches is protected."""
    branches = Branch.objects.filter(project=project, deleted_at=None, hidden=False)
    protected = branches.filter(protected=True).order_by("created_at").first()
    if protected is not None:
        raise Unprocessable(f'the branch "{protected.name}" is protected; end its protection first')


def lock_project(account: Account, project_id: str) -> Project:
    """The project, deleted or not, locked until the transaction ends. Raises NotFound, Locked.

    The account is part of the query, so that no caller waits for or acquires the lock of another
    account's project. The lock is FOR NO KEY UPDATE, as in the engine (`operations.locks`): rows
    that refer to the project can be inserted meanwhile.
    """
    locked = _projects_of(account).select_for_update(no_key=True, of=("self",))
    with locking_within_bound(Locked(BUSY_PROJECT)):
        # Twice for a project that has moved to another host meanwhile: see `locked_project`.
        project = locked.filter(id=project_id).first() or locked.filter(id=project_id).first()
    if project is None:
        raise NotFound("project not found", fields=["project_id"])
    return project


def _owner_of(database_name: str) -> str:
    """The default name of a database's owner role, at most 63 bytes long."""
    return (database_name.encode()[: 63 - len("_owner")] + b"_owner").decode(errors="ignore")


def _projects_of(account: Account) -> QuerySet[Project]:
    return Project.objects.select_related("host", "region", "account").filter(account=account)


def _find_region(region_id: str | None) -> Region:
    chosen = Q(id=region_id) if region_id else Q(default=True)
    region = Region.objects.filter(chosen).first()
    if region is None:
        known = ", ".join(Region.objects.order_by("id").values_list("id", flat=True))
        raise Unprocessable(
            f'region "{region_id}" does not exist; use one of: {known}', fields=["region_id"]
        )
    return region


def check_organization(account: Account, org_id: str | None) -> None:
    """Raises NotFound if `org_id` is not None and not that of the account's organization.

    Clients of Neon's API expect that organizations own the projects and some API keys. In Perch the
    account owns them, and has one organization, which represents it.
    """
    if org_id not in (None, account.organization_id):
        raise NotFound("organization not found", fields=["org_id"])
