"""Recovers deleted projects, within the hours that the server keeps their data."""

from django.db import transaction

from controlplane import clock
from controlplane.events.changes import project_recovered
from controlplane.events.recording import record, together
from controlplane.models import Account, Branch, Endpoint, EndpointState, Project
from controlplane.operations.states import enter
from controlplane.services import plan_limits
from controlplane.services.branch_pages import BranchesAsked, list_branches
from controlplane.services.errors import Conflict, NotFound
from controlplane.services.projects import get_project, lock_project


def recover_project(account: Account, project_id: str) -> tuple[Project, list[Branch]]:
    """The project as before it was deleted, and its branches: endpoints, roles, databases,
    settings, and the API keys and webhooks that are limited to it. Its endpoints are idle.

    Raises NotFound where there is none or its time is over, Conflict where it is not deleted,
    Unprocessable where the account's plan allows no more projects.
    """
    with transaction.atomic(), together():
        # Nobody who holds a project's lock asks for an account's: so it comes first.
        plan_limits.check_projects(account)
        project = lock_project(account, project_id)
        if project.deleted_at is None:
            raise Conflict("the project is not deleted")
        now = clock.now()
        if project.recoverable_until is None or project.recoverable_until <= now:
            raise NotFound("project not found")
        endpoints = Endpoint.objects.filter(project=project, deleted_at=project.deleted_at)
        for endpoint in endpoints.select_related("branch"):
            # What it ran until the deletion counts.
            enter(project, endpoint, EndpointState.IDLE, now=project.deleted_at)
            Endpoint.objects.filter(id=endpoint.id).update(deleted_at=None, updated_at=now)
        project.deleted_at = project.recoverable_until = None
        project.updated_at = now
        project.save(update_fields=["deleted_at", "recoverable_until", "updated_at"])
        record(project_recovered(project))
    page = list_branches(account, project_id, BranchesAsked())
    return get_project(account, project_id), page.branches
