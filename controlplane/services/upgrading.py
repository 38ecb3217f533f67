"""Moves a project to a newer major version of Postgres, for `manage.py upgrade_project`.

What the rows tell is checked here, before anything is scheduled. What only the branches' catalogs
tell is checked by the operation, before it switches anything.
"""

from collections.abc import Iterator, Sequence

from controlplane.compute.settings.postgres_settings import complaint, from_json
from controlplane.models import (
    Action,
    Endpoint,
    EndpointState,
    Operation,
    PostgresSettings,
    Project,
)
from controlplane.operations.actions.table import details_of, rule_of
from controlplane.operations.details import UpgradeProjectDetails
from controlplane.operations.engine import cancelling
from controlplane.operations.engine.scheduling import Step, schedule, unfinished
from controlplane.operations.locks import locked_project
from controlplane.services.errors import Conflict, NotFound, Unprocessable
from controlplane.services.rules.placement import versions_of


def upgrade(project_id: str, *, to: int, only_check: bool = False) -> list[Operation]:
    """Schedule the upgrade of the project, or only the check of it. Returns the operations.

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
            _refuse(project, to)
            details = UpgradeProjectDetails(to=to, only_check=only_check)
            steps = [] if only_check else list(_suspends(project, earlier))
            last = Step(Action.UPGRADE_PROJECT, holds_project=True, details=details)
            verb = "Check the upgrade of" if only_check else "Upgrade"
            title = f"{verb} the project to Postgres {to}"
            return schedule(project, [*steps, last], title=title)
    except Project.DoesNotExist as error:
        raise NotFound(f"unknown project {project_id}") from error


def cancel(operation: Operation) -> str | None:
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


def _refuse(project: Project, to: int) -> None:
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
