"""Changes a project: its settings, the undoing of its deletion, its major version of Postgres."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import F

from controlplane import clock
from controlplane.compute.settings.postgres_settings import complaint, from_json
from controlplane.events.changes import endpoint_requested, project_recovered, project_updated
from controlplane.events.recording import differences, record, together
from controlplane.events.types import EventType
from controlplane.models import (
    Account,
    Action,
    Branch,
    Endpoint,
    EndpointState,
    Operation,
    PostgresSettings,
    Project,
)
from controlplane.models.consumption import with_consumed_projects
from controlplane.operations.actions.table import details_of, rule_of
from controlplane.operations.details import UpgradeProjectDetails
from controlplane.operations.engine import cancelling
from controlplane.operations.engine.effects import pending_state
from controlplane.operations.engine.scheduling import Step, schedule, unfinished
from controlplane.operations.locks import locked_project
from controlplane.operations.states import enter
from controlplane.services.branch_pages import BranchFilters, list_branches
from controlplane.services.errors import (
    Conflict,
    FieldError,
    NotFound,
    Unprocessable,
    refuse_fields,
)
from controlplane.services.projects import changing_project, get_project, lock_project
from controlplane.services.rules import plan_limits
from controlplane.services.rules.endpoint_attributes import (
    EndpointAttributes,
    check_defaults,
    check_json_size,
    merged_defaults,
)
from controlplane.services.rules.placement import versions_of
from controlplane.services.rules.project_settings import (
    ProjectSettings,
    check_durability,
    merged_project_settings,
)


@dataclass(frozen=True, kw_only=True)
class ProjectChanges:
    """What a request changes of a project; None for what was not sent."""

    name: str | None = None
    endpoint_defaults: EndpointAttributes | None = None
    settings: ProjectSettings | None = None
    history_retention_seconds: int | None = None
    # These cannot be changed: any other value than the present one is refused.
    region_id: str | None = None
    pg_version: int | None = None
    store_passwords: bool | None = None
    org_id: str | None = None


def update_project(
    account: Account, project_id: str, changes: ProjectChanges
) -> tuple[Project, list[Operation]]:
    """Change the attributes that were sent. Returns the project and the operations that this takes.

    Raises NotFound, Locked, Invalid, Unprocessable, HostAway.
    """
    with changing_project(account, project_id) as project:
        _refuse_what_stays(project, changes)
        before, replicated = _event_fields(project), project.replicates_logically
        if changes.name is not None:
            project.name = changes.name
        if changes.endpoint_defaults is not None:
            project.default_endpoint_settings = merged_defaults(
                project.default_endpoint_settings, changes.endpoint_defaults
            )
            check_defaults(project)
        if changes.settings is not None:
            project.settings = merged_project_settings(
                project.settings, changes.settings, host=project.host
            )
            check_json_size("settings", project.settings)
        if changes.history_retention_seconds not in (None, project.history_retention_seconds):
            plan_limits.check_history(account, changes.history_retention_seconds)
            project.history_retention_seconds = changes.history_retention_seconds
        check_durability(project.settings, project.history_retention_seconds)
        project.updated_at = clock.now()
        project.save()
        operations = []
        if project.replicates_logically and not replicated:
            operations = suspend_for_logical_replication(project)
        if changed := differences(before, _event_fields(project)):
            record(project_updated(project, changed, operations))
    with_consumed_projects([project])
    return project, operations


def _refuse_what_stays(project: Project, changes: ProjectChanges) -> None:
    """Raises Unprocessable if an attribute that cannot be changed was sent with another value."""
    stays = {
        "region_id": (
            project.region_id,
            f'the project stays in its region "{project.region_id}"; '
            "for another, create a project there",
        ),
        "pg_version": (
            project.pg_version,
            f"the project stays with Postgres {project.pg_version}: ask the operator to upgrade "
            "it, or create another project and transfer the data with pg_dump",
        ),
        "store_passwords": (
            project.store_passwords,
            "whether passwords are stored is chosen when a project is created; "
            "create another project",
        ),
        "org_id": (
            project.account.organization_id,
            "a project stays with the organization of its account",
        ),
    }
    refuse_fields(
        FieldError(field, words)
        for field, (value, words) in stays.items()
        if getattr(changes, field) not in (None, value)
    )


def _event_fields(project: Project) -> dict[str, Any]:
    """The attributes of a project that may be changed, as events show them."""
    return {
        "name": project.name,
        "default_endpoint_settings": project.default_endpoint_settings,
        "settings": project.settings,
        "history_retention_seconds": project.history_retention_seconds,
    }


def suspend_for_logical_replication(project: Project) -> list[Operation]:
    """Make every endpoint of the project start anew, with `wal_level=logical` and roles that may
    replicate. Endpoints that are active, or are being started, are suspended; the next client wakes
    them.

    The caller holds the project's lock, and has changed the project's setting. Raises HostAway.
    """
    # With a new revision, the next start of each compute applies the roles again.
    Branch.objects.filter(project=project, deleted_at=None).update(
        catalog_revision=F("catalog_revision") + 1
    )
    earlier = unfinished(project.id)
    endpoints = Endpoint.objects.select_related("branch").filter(project=project, deleted_at=None)
    operations = []
    for endpoint in endpoints.order_by("created_at", "id"):
        endpoint.project = project
        heading_for = pending_state(endpoint, earlier) or endpoint.current_state
        if heading_for == EndpointState.ACTIVE:
            # Each suspend is its own chain, so that a failed one does not prevent the others.
            step = Step(Action.SUSPEND_COMPUTE, branch=endpoint.branch, endpoint=endpoint)
            suspends = schedule(project, [step])
            kind = EventType.ENDPOINT_SUSPEND_REQUESTED
            record(endpoint_requested(kind, project, endpoint, suspends))
            operations += suspends
    return operations


def recover_project(account: Account, project_id: str) -> tuple[Project, list[Branch]]:
    """Undo the deletion of a project: its branches, endpoints, roles, databases and settings, and
    the API keys and webhooks that are limited to it, are as before. Its endpoints are idle. Returns
    the project and its branches.

    Raises NotFound if there is no such project or its data is not kept any more, Conflict if it is
    not deleted, Unprocessable if the account's plan allows no more projects, Locked, TooManyAtOnce.
    """
    with transaction.atomic(), together():
        # This locks the account, which must be locked before a project to avoid deadlocks.
        plan_limits.check_projects(account)
        project = lock_project(account, project_id)
        if project.deleted_at is None:
            raise Conflict("the project is not deleted")
        now = clock.now()
        if project.recoverable_until is None or project.recoverable_until <= now:
            raise NotFound("project not found")
        endpoints = Endpoint.objects.filter(project=project, deleted_at=project.deleted_at)
        for endpoint in endpoints.select_related("branch"):
            # Count its active time until the deletion.
            enter(project, endpoint, EndpointState.IDLE, now=project.deleted_at)
            Endpoint.objects.filter(id=endpoint.id).update(deleted_at=None, updated_at=now)
        project.deleted_at = project.recoverable_until = None
        project.updated_at = now
        project.save(update_fields=["deleted_at", "recoverable_until", "updated_at"])
        record(project_recovered(project))
    page = list_branches(account, project_id, BranchFilters())
    return get_project(account, project_id), page["branches"]


def upgrade_project(project_id: str, *, to: int, only_check: bool = False) -> list[Operation]:
    """Schedule the upgrade of the project, or only the check of it. Returns the operations.

    What the rows tell is checked here. What only the branches' catalogs tell is checked by the
    operation, before it switches anything.

    A project that has the version already is upgraded again: that completes an upgrade that failed
    halfway, and takes along branches of moments before it. Raises NotFound, Conflict,
    Unprocessable, HostAway.
    """
    try:
        with locked_project(project_id) as project:
            if project.deleted_at is not None:
                raise NotFound(f"unknown project {project_id}")
            earlier = unfinished(project.id)
            if other := next((o for o in earlier if o.action == Action.UPGRADE_PROJECT), None):
                raise Conflict(f"the project is being upgraded by the operation {other.id}")
            _refuse_upgrade(project, to)
            details = UpgradeProjectDetails(to=to, only_check=only_check)
            steps = [] if only_check else list(_suspends(project, earlier))
            last = Step(Action.UPGRADE_PROJECT, holds_project=True, details=details)
            verb = "Check the upgrade of" if only_check else "Upgrade"
            title = f"{verb} the project to Postgres {to}"
            return schedule(project, [*steps, last], title=title)
    except Project.DoesNotExist as error:
        raise NotFound(f"unknown project {project_id}") from error


def cancel_upgrade(operation: Operation) -> str | None:
    """Cancel the upgrade. Returns why that is not possible any more; None if it was cancelled."""
    with locked_project(operation.project_id) as project:
        row = Operation.objects.get(id=operation.id)
        details = details_of(row.action, row.details)
        if row.status not in ("scheduling", "running"):
            return f"the operation is {row.status} already"
        if no_way_back := rule_of(row).no_way_back_from(details):
            return no_way_back
        cancelling.cancel(project, [row])
    return None


def _refuse_upgrade(project: Project, to: int) -> None:
    host = project.host
    available = versions_of([host])
    if to not in available:
        raise Unprocessable(
            f'the host "{host.id}" does not have Postgres {to}; it has '
            f"{', '.join(map(str, available)) or 'none yet'}"
        )
    if to < project.pg_version:
        raise Unprocessable(
            f"the project has Postgres {project.pg_version}; there is no way to an older version"
        )
    published = PostgresSettings.objects.filter(host=host, major=to).first()
    if published is None:
        raise Unprocessable(f"the worker has not published the settings of Postgres {to} yet")
    if found := list(_unknown_settings(project, published)):
        raise Unprocessable(
            f"settings that Postgres {to} does not accept: {'; '.join(found)}. Change them first"
        )


def _unknown_settings(project: Project, published: PostgresSettings) -> Iterator[str]:
    known = from_json(published.known)
    storage = project.account.branch_size_limit
    endpoints = Endpoint.objects.filter(project=project, deleted_at=None).order_by("id")
    places = [(one.id, one.settings, one.autoscaling_limit_max_cu) for one in endpoints]
    defaults = project.default_endpoint_settings
    largest = max((size for _, _, size in places), default=project.account.largest_compute)
    places.append(("the project's defaults", defaults, largest))
    for place, settings, size in places:
        for name, value in settings.get("pg_settings", {}).items():
            if words := complaint(name, value, max_cu=size, storage=storage, known=known):
                yield f"{name} of {place}: {words}"


def _suspends(project: Project, earlier: Sequence[Operation]) -> Iterator[Step]:
    """Suspend the endpoints that are active, or become so by an unfinished operation."""
    changing = {row.endpoint_id for row in earlier}
    for endpoint in Endpoint.objects.filter(project=project, deleted_at=None).order_by("id"):
        if endpoint.current_state == EndpointState.ACTIVE or endpoint.id in changing:
            yield Step(Action.SUSPEND_COMPUTE, branch=endpoint.branch, endpoint=endpoint)
