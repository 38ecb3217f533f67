"""Recovers deleted projects, as long as the server keeps their data."""

from django.db import transaction

from controlplane import clock
from controlplane.events.changes import project_recovered
from controlplane.events.recording import record, together
from controlplane.models import Account, Branch, Endpoint, EndpointState, Project
from controlplane.operations.states import enter
from controlplane.services.branch_pages import BranchFilters, list_branches
from controlplane.services.errors import Conflict, NotFound
from controlplane.services.projects import get_project, lock_project
from controlplane.services.rules import plan_limits


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
    return get_project(account, project_id), page.branches
