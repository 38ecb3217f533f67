"""Changes a project: its name, its settings, and the defaults of its future endpoints."""

from dataclasses import dataclass
from typing import Any

from controlplane import clock
from controlplane.events.changes import project_updated
from controlplane.events.differences import differences
from controlplane.events.recording import record
from controlplane.models import Account, Operation, Project
from controlplane.models.consumption import with_consumed_projects
from controlplane.services.errors import FieldError, refuse_fields
from controlplane.services.projects import changing_project
from controlplane.services.rules import plan_limits
from controlplane.services.rules.endpoint_attributes import (
    EndpointAttributes,
    check_defaults,
    merged_defaults,
)
from controlplane.services.rules.endpoint_settings import check_json_size
from controlplane.services.rules.logical_replication import suspend_for_logical_replication
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
