"""Projects: create, list, rename, delete."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone

from controlplane.models import (
    UNFINISHED,
    Account,
    Action,
    Branch,
    BranchState,
    Database,
    Endpoint,
    EndpointState,
    Operation,
    Project,
    Region,
    Role,
)
from controlplane.operations.engine import Step, cancel, locked_project, schedule
from controlplane.services.endpoint_settings import check_limits, check_pg_settings
from controlplane.services.errors import Invalid, NotFound, Unprocessable
from controlplane.services.passwords import encrypt, new_password, scram_verifier
from controlplane.services.reserved_names import check_database_name, check_role_name


@dataclass(frozen=True)
class NewProject:
    """What a project was created with; `password` is the role's, shown once."""

    project: Project
    branch: Branch
    endpoint: Endpoint
    role: Role
    password: str
    database: Database
    operations: list[Operation]


def find_project(account: Account, project_id: str) -> Project:
    """Raises NotFound, for another account's projects too."""
    project = _projects_of(account).filter(id=project_id, deleted_at=None).first()
    if project is None:
        raise NotFound("project not found")
    return project


def get_project(account: Account, project_id: str) -> Project:
    """The project with what its branches used. Raises NotFound."""
    project = _with_usage(_projects_of(account)).filter(id=project_id, deleted_at=None).first()
    if project is None:
        raise NotFound("project not found")
    return project


@contextmanager
def changing_project(account: Account, project_id: str) -> Iterator[Project]:
    """A transaction in which the project, held locked, may be changed. Raises NotFound."""
    find_project(account, project_id)
    with locked_project(project_id) as project:
        if project.deleted_at is not None:
            raise NotFound("project not found")
        yield project


def list_projects(
    account: Account, *, after: str | None, limit: int, search: str = ""
) -> QuerySet[Project]:
    """Newest first, those that follow the project with the id `after`. Raises Invalid."""
    projects = (
        _with_usage(_projects_of(account)).filter(deleted_at=None).order_by("-created_at", "id")
    )
    if search:
        projects = projects.filter(Q(name__icontains=search) | Q(id=search))
    if after:
        # A deleted project still marks its place: nobody's paging breaks in the middle.
        last = Project.objects.filter(account=account, id=after).first()
        if last is None:
            raise Invalid("invalid cursor: no such project")
        projects = projects.filter(
            Q(created_at__lt=last.created_at) | Q(created_at=last.created_at, id__gt=last.id)
        )
    return projects[:limit]


def create_project(
    account: Account,
    *,
    name: str | None,
    region_id: str | None,
    pg_version: int | None,
    branch_name: str,
    role_name: str | None,
    database_name: str,
    endpoint_settings: Mapping[str, Any],
    settings: Mapping[str, Any],
    history_retention_seconds: int,
    store_passwords: bool,
) -> NewProject:
    """A project with its default branch, that branch's endpoint, a role and a database.

    Raises Invalid, Unprocessable.
    """
    region = _find_region(region_id)
    if region.pg_version is None:
        raise Unprocessable(f'no worker has come up in the region "{region.id}" yet; try again')
    if pg_version not in (None, region.pg_version):
        raise Unprocessable(
            f'pg_version {pg_version} is not available in the region "{region.id}"; '
            f"use {region.pg_version}"
        )
    check_limits(
        account,
        endpoint_settings.get("autoscaling_limit_min_cu"),
        endpoint_settings.get("autoscaling_limit_max_cu"),
    )
    check_pg_settings(endpoint_settings.get("pg_settings", {}))
    owner = role_name or _owner_of(database_name)
    check_role_name(owner)
    check_database_name(database_name)
    project = Project(
        account=account,
        region=region,
        name=name or "",
        pg_version=region.pg_version,
        default_endpoint_settings=dict(endpoint_settings),
        settings=dict(settings),
        history_retention_seconds=history_retention_seconds,
        store_passwords=store_passwords,
    )
    project.name = project.name or project.id
    password = new_password()
    now = timezone.now()
    branch = Branch(
        project=project, name=branch_name, default=True, catalog_revision=1, created_at=now
    )
    role = Role(
        branch=branch,
        name=owner,
        verifier=scram_verifier(password),
        encrypted_password=encrypt(password) if store_passwords else "",
    )
    database = Database(branch=branch, name=database_name, owner_name=owner)
    endpoint = new_endpoint(project, branch)
    # Again, as each limit that was left out has a default now.
    check_limits(account, endpoint.autoscaling_limit_min_cu, endpoint.autoscaling_limit_max_cu)
    with transaction.atomic():
        project.save(force_insert=True)
        for row in (branch, role, database, endpoint):
            row.save(force_insert=True)
        # Nobody else can see it yet, so nobody needs to be kept out.
        operations = schedule(
            project,
            [
                Step(Action.CREATE_TIMELINE, branch=branch),
                Step(Action.START_COMPUTE, branch=branch, endpoint=endpoint),
            ],
        )
    branch.pending_state = BranchState.READY
    endpoint.pending_state = EndpointState.ACTIVE
    return NewProject(project, branch, endpoint, role, password, database, operations)


def new_endpoint(project: Project, branch: Branch) -> Endpoint:
    """An unsaved endpoint with what the project says of its endpoints."""
    defaults = project.default_endpoint_settings
    endpoint = Endpoint(project=project, branch=branch)
    endpoint.settings = {"pg_settings": dict(defaults.get("pg_settings", {}))}
    for name in (
        "autoscaling_limit_min_cu",
        "autoscaling_limit_max_cu",
        "suspend_timeout_seconds",
    ):
        if name in defaults:
            setattr(endpoint, name, defaults[name])
    return endpoint


def update_project(account: Account, project_id: str, changes: Mapping[str, Any]) -> Project:
    """Change the attributes named in `changes`. Raises NotFound, Invalid, Unprocessable."""
    with changing_project(account, project_id) as project:
        for name, value in changes.items():
            merged = {**getattr(project, name), **value} if isinstance(value, dict) else value
            setattr(project, name, merged)
        if "default_endpoint_settings" in changes:
            typical = new_endpoint(project, Branch(project=project))
            check_limits(
                account, typical.autoscaling_limit_min_cu, typical.autoscaling_limit_max_cu
            )
            check_pg_settings(typical.settings["pg_settings"])
        project.updated_at = timezone.now()
        project.save()
    return project


def delete_project(account: Account, project_id: str) -> Project:
    """Delete the project for good: at once for callers, its data by an operation.

    Deleting it again answers the same. Raises NotFound.
    """
    if not _projects_of(account).filter(id=project_id).exists():
        raise NotFound("project not found")
    with locked_project(project_id) as project:
        if project.deleted_at is not None:
            return project
        now = timezone.now()
        waiting = Operation.objects.filter(project=project, status__in=UNFINISHED)
        cancel(list(waiting), "the project was deleted")
        project.deleted_at = project.updated_at = now
        project.save(update_fields=["deleted_at", "updated_at"])
        Endpoint.objects.filter(project=project, deleted_at=None).update(deleted_at=now)
        schedule(project, [Step(Action.DELETE_TENANT, holds_project=True)])
    return project


def _owner_of(database_name: str) -> str:
    """The name of the role that owns a database, where the caller gave none: 63 bytes at most."""
    return (database_name.encode()[: 63 - len("_owner")] + b"_owner").decode(errors="ignore")


def _projects_of(account: Account) -> QuerySet[Project]:
    return Project.objects.select_related("region", "account").filter(account=account)


def _with_usage(projects: QuerySet[Project]) -> QuerySet[Project]:
    return projects.annotate(
        total_active=Coalesce(Sum("branches__active_seconds"), 0.0),
        total_compute=Coalesce(Sum("branches__compute_seconds"), 0.0),
    )


def _find_region(region_id: str | None) -> Region:
    chosen = Q(id=region_id) if region_id else Q(default=True)
    region = Region.objects.filter(chosen).first()
    if region is None:
        known = ", ".join(Region.objects.order_by("id").values_list("id", flat=True))
        raise Unprocessable(f'region "{region_id}" does not exist; use one of: {known}')
    if region.draining:
        raise Unprocessable(f'region "{region.id}" takes no new projects')
    return region
