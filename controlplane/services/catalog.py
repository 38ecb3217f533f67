"""Roles and databases of a branch: changes of their rows, which the compute's catalog follows."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta

from django.db import transaction
from django.db.models import QuerySet

from controlplane import clock
from controlplane.actors import current_actor
from controlplane.events.catalog import (
    database_created,
    database_deleted,
    database_updated,
    password_reset,
    password_revealed,
    role_created,
    role_deleted,
)
from controlplane.events.recording import differences, record
from controlplane.models import (
    Account,
    Action,
    Branch,
    Database,
    Endpoint,
    EndpointState,
    Event,
    Operation,
    OperationStatus,
    Project,
    RequestKind,
    Role,
)
from controlplane.models.reading import Reading
from controlplane.operations.details import ApplyConfigDetails
from controlplane.operations.engine.effects import pending_state
from controlplane.operations.engine.scheduling import Step, schedule, unfinished
from controlplane.services.branches import find_branch, refuse_while_busy
from controlplane.services.errors import (
    Conflict,
    NotFound,
    PasswordNotStored,
    Unprocessable,
    taken_name,
)
from controlplane.services.passwords import decrypt, new_password, set_password
from controlplane.services.projects import changing_project, find_project
from controlplane.services.rules import plan_limits
from controlplane.services.rules.reserved_names import check_name

# How long a caller may read a password again without another event.
REVEAL_EVENT_INTERVAL = timedelta(hours=1)
OF_BRANCH = "WHERE t.branch_id = %(branch)s AND t.deleted_at IS NULL"
ROLES = Reading(Role, f"{OF_BRANCH} ORDER BY t.name")
DATABASES = Reading(Database, f"{OF_BRANCH} ORDER BY t.id")


@dataclass
class CatalogChange:
    """A change in progress. `operations` is filled at the end of `changing_catalog`."""

    project: Project
    branch: Branch
    operations: list[Operation] = field(default_factory=list)
    # The events that describe the change; they are written with the ids of its operations.
    events: list[Event] = field(default_factory=list)


@contextmanager
def changing_catalog(account: Account, project_id: str, branch_id: str) -> Iterator[CatalogChange]:
    """A transaction in which the branch's roles and databases may be changed.

    At its end the operations that apply the change to the compute are scheduled: `apply_config`,
    and `suspend_compute` if the endpoint is idle. Without an endpoint there are none, and the next
    compute that starts on the branch applies the change. If the block adds no event to the change,
    nothing was changed and no operations are scheduled. Raises NotFound, Locked, HostAway.
    """
    with changing_project(account, project_id) as project:
        branch = find_branch(project, branch_id)
        operations = unfinished(project.id)
        refuse_while_busy(branch, operations)
        change = CatalogChange(project, branch)
        yield change
        if not change.events:
            return
        branch.catalog_revision += 1
        branch.updated_at = clock.now()
        branch.save(update_fields=["catalog_revision", "updated_at"])
        endpoint = Endpoint.objects.filter(branch=branch, deleted_at=None).first()
        if endpoint:
            title = change.events[0].summary
            change.operations = _follow(project, branch, endpoint, operations, title)
        for event in change.events:
            event.operation_ids = [operation.id for operation in change.operations]
        record(*change.events)


def _follow(
    project: Project, branch: Branch, endpoint: Endpoint, earlier: Sequence[Operation], title: str
) -> list[Operation]:
    """Schedule the operations that apply the change to the endpoint's compute. They run after the
    `earlier` unfinished operations."""
    heading_for = pending_state(endpoint, earlier) or endpoint.current_state
    actions = [Action.APPLY_CONFIG]
    if heading_for == EndpointState.IDLE:
        actions.append(Action.SUSPEND_COMPUTE)
    if joined := _join_waiting(branch, endpoint, earlier, actions):
        return joined
    steps = [Step(action, branch=branch, endpoint=endpoint) for action in actions]
    return schedule(project, steps, RequestKind.CHANGE_CATALOG, title=title)


def _join_waiting(
    branch: Branch, endpoint: Endpoint, earlier: Sequence[Operation], actions: Sequence[Action]
) -> list[Operation]:
    """Let the newest operations that hold the branch apply this change too, if they wait to apply
    an earlier change for the same caller. Returns them, or [] if the change needs its own.

    So however many changes follow each other, at most one waits behind the one that is applied, and
    so do a start and a copy that are requested next.
    """
    held = {branch.project_id, branch.id, endpoint.id}
    newest = [row for row in earlier if held.intersection(row.resources)][-1:]
    waiting = [row for row in earlier if newest and row.chain == newest[0].chain]
    place, actor = (branch.id, endpoint.id), current_actor()
    if [row.action for row in waiting] != actions or not all(
        row.status == OperationStatus.SCHEDULING
        and (row.branch_id, row.endpoint_id) == place
        and row.initiator == actor
        for row in waiting
    ):
        return []
    details = ApplyConfigDetails.from_json(waiting[0].details)
    if details.may_restart:
        return []
    # Before the project's lock is released: a later change has a later time.
    joined = replace(details, changed_until=clock.now().isoformat())
    waiting[0].details = joined.as_json()
    waiting[0].save(update_fields=["details"])
    return waiting


def list_roles(account: Account, project_id: str, branch_id: str) -> list[Role]:
    """The branch's roles, by name. Raises NotFound."""
    branch = find_branch(find_project(account, project_id), branch_id)
    return ROLES.rows(branch=branch.id)


def get_role(account: Account, project_id: str, branch_id: str, name: str) -> Role:
    """The branch's role with this name. Raises NotFound."""
    return find_role(find_branch(find_project(account, project_id), branch_id), name)


def create_role(
    account: Account, project_id: str, branch_id: str, *, name: str, no_login: bool
) -> tuple[Role, str, list[Operation]]:
    """Create a role. Returns the role, its password and the operations. Raises NotFound, Conflict,
    Locked, Unprocessable."""
    check_name("role", name)
    password = new_password()
    with changing_catalog(account, project_id, branch_id) as change:
        if _roles(change.branch).filter(name=name).exists():
            raise Conflict(
                f'role already exists; role_name:"{name}"', errors=[taken_name("role", name)]
            )
        plan_limits.check_one_more(account, change.branch.roles.filter(deleted_at=None))
        role = Role(branch=change.branch, name=name, no_login=no_login)
        set_password(role, password, store=change.project.store_passwords)
        role.save(force_insert=True)
        change.events.append(role_created(change.project, change.branch, role))
    return role, password, change.operations


def reset_password(
    account: Account, project_id: str, branch_id: str, name: str
) -> tuple[Role, str, list[Operation]]:
    """Give the role a new password, and end the sessions that used the old one. Returns the role,
    the password and the operations. Raises NotFound, Locked."""
    password = new_password()
    with changing_catalog(account, project_id, branch_id) as change:
        role = find_role(change.branch, name)
        set_password(role, password, store=change.project.store_passwords)
        role.updated_at = role.sessions_end_at = clock.now()
        role.save()
        change.events.append(password_reset(change.project, change.branch, role))
    return role, password, change.operations


def reveal_password(account: Account, project_id: str, branch_id: str, name: str) -> str:
    """The role's password; records that it was revealed. Raises NotFound, PasswordNotStored."""
    project = find_project(account, project_id)
    branch = find_branch(project, branch_id)
    return reveal(project, branch, find_role(branch, name))


def reveal(project: Project, branch: Branch, role: Role, *, once: bool = False) -> str:
    """The role's password, to be shown to the caller; records that it was revealed. With `once`,
    nothing is recorded if the same caller was recorded within REVEAL_EVENT_INTERVAL for this
    password. Raises PasswordNotStored."""
    password = password_of(project, role)
    event = password_revealed(project, branch, role)
    alike = ("account_id", "type", "branch_id", "summary", "actor_type", "api_key_id", "address")
    before = Event.objects.filter(
        **{name: getattr(event, name) for name in alike},
        at__gt=max(role.updated_at, branch.updated_at, clock.now() - REVEAL_EVENT_INTERVAL),
    )
    if not once:
        record(event)
    elif not before.exists():
        with transaction.atomic():
            # A page asks several times at once.
            Role.objects.select_for_update(no_key=True).get(id=role.id)
            if not before.exists():
                record(event)
    return password


def password_of(project: Project, role: Role) -> str:
    """The role's stored password. Raises PasswordNotStored."""
    if not role.encrypted_password and project.store_passwords:
        raise PasswordNotStored(
            f'the password of the role "{role.name}" was set by SQL and is not stored: '
            "reset_password gives the role a new one"
        )
    if not role.encrypted_password:
        raise PasswordNotStored("Storing passwords is disabled")
    return decrypt(role.encrypted_password)


def delete_role(
    account: Account, project_id: str, branch_id: str, name: str
) -> tuple[Role, list[Operation]]:
    """Delete a role. Raises NotFound, Locked, Unprocessable if the role owns a database."""
    with changing_catalog(account, project_id, branch_id) as change:
        role = find_role(change.branch, name)
        owned = _databases(change.branch).filter(owner_name=name).order_by("name")
        if names := list(owned.values_list("name", flat=True)):
            raise Unprocessable(
                f"the role owns databases: {', '.join(names)}; give them another owner first"
            )
        role.deleted_at = role.updated_at = clock.now()
        role.save(update_fields=["deleted_at", "updated_at"])
        change.events.append(role_deleted(change.project, change.branch, role))
    return role, change.operations


def list_databases(account: Account, project_id: str, branch_id: str) -> list[Database]:
    """The branch's databases, oldest first. Raises NotFound."""
    branch = find_branch(find_project(account, project_id), branch_id)
    return DATABASES.rows(branch=branch.id)


def get_database(account: Account, project_id: str, branch_id: str, name: str) -> Database:
    """The branch's database with this name. Raises NotFound."""
    return find_database(find_branch(find_project(account, project_id), branch_id), name)


def create_database(
    account: Account, project_id: str, branch_id: str, *, name: str, owner_name: str
) -> tuple[Database, list[Operation]]:
    """Create a database. Raises NotFound, Conflict, Locked, Unprocessable."""
    with changing_catalog(account, project_id, branch_id) as change:
        _check_database_name(change.branch, name)
        _check_owner(change.branch, owner_name)
        plan_limits.check_one_more(account, change.branch.databases.filter(deleted_at=None))
        database = Database.objects.create(branch=change.branch, name=name, owner_name=owner_name)
        change.events.append(database_created(change.project, change.branch, database))
    return database, change.operations


def update_database(
    account: Account,
    project_id: str,
    branch_id: str,
    name: str,
    *,
    new_name: str | None,
    owner_name: str | None,
) -> tuple[Database, list[Operation]]:
    """Rename a database or change its owner. Raises NotFound, Conflict, Locked, Unprocessable."""
    with changing_catalog(account, project_id, branch_id) as change:
        database = find_database(change.branch, name)
        before = {"name": database.name, "owner_name": database.owner_name}
        if new_name is not None and new_name != name:
            _check_database_name(change.branch, new_name)
            _refuse_name_in_use(change.branch, database, new_name)
            database.name = new_name
        if owner_name is not None:
            _check_owner(change.branch, owner_name)
            database.owner_name = owner_name
        after = {"name": database.name, "owner_name": database.owner_name}
        if changes := differences(before, after):
            database.updated_at = clock.now()
            database.save(update_fields=["name", "owner_name", "updated_at"])
            change.events.append(database_updated(change.project, change.branch, name, changes))
    return database, change.operations


def delete_database(
    account: Account, project_id: str, branch_id: str, name: str
) -> tuple[Database, list[Operation]]:
    """Delete a database. Raises NotFound, Locked."""
    with changing_catalog(account, project_id, branch_id) as change:
        database = find_database(change.branch, name)
        database.deleted_at = database.updated_at = clock.now()
        database.save(update_fields=["deleted_at", "updated_at"])
        change.events.append(database_deleted(change.project, change.branch, database))
    return database, change.operations


def _check_database_name(branch: Branch, name: str) -> None:
    check_name("database", name)
    if _databases(branch).filter(name=name).exists():
        raise Conflict(
            f'database already exists; database_name:"{name}"',
            errors=[taken_name("database", name)],
        )


def _refuse_name_in_use(branch: Branch, database: Database, name: str) -> None:
    """Raises Conflict if another database has this name in the compute's catalog, because its
    rename is not applied yet.

    If two databases swapped their names, it would be impossible after a crash to tell which is
    which.
    """
    others = _databases(branch).exclude(id=database.id)
    if other := others.filter(applied_name=name).first():
        raise Conflict(
            f'the compute still has the database "{other.name}" under the name "{name}"; '
            "try again once the endpoint has been started",
            fields=["name"],
        )


def _check_owner(branch: Branch, owner_name: str) -> None:
    if not _roles(branch).filter(name=owner_name).exists():
        raise Unprocessable(
            f'database owner not found; role_name:"{owner_name}"', fields=["owner_name"]
        )


def _roles(branch: Branch) -> QuerySet[Role]:
    return Role.objects.filter(branch=branch, deleted_at=None)


def _databases(branch: Branch) -> QuerySet[Database]:
    return Database.objects.filter(branch=branch, deleted_at=None)


def find_role(branch: Branch, name: str) -> Role:
    """The branch's role with this name. Raises NotFound."""
    role = _roles(branch).filter(name=name).first()
    if role is None:
        raise NotFound("role not found", fields=["role_name"])
    return role


def find_database(branch: Branch, name: str) -> Database:
    """The branch's database with this name. Raises NotFound."""
    database = _databases(branch).filter(name=name).first()
    if database is None:
        raise NotFound("database not found", fields=["database_name", "db_name"])
    return database
