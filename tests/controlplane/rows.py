"""Writes rows directly into the database, for tests of the API alone."""

import uuid
from datetime import timedelta
from typing import Any

from django.utils import timezone

from controlplane.models import (
    Account,
    Action,
    Branch,
    Endpoint,
    Operation,
    Project,
    Region,
    Snapshot,
    Webhook,
)


def make_project(account: Account, region: Region, *, size: int = 1) -> Project:
    """Create a project with `size` branches, endpoints and finished operations."""
    project = Project.objects.create(account=account, region=region, name="rows", pg_version=18)
    begun = timezone.now() - timedelta(hours=1)
    branches = Branch.objects.bulk_create(
        Branch(project=project, name=f"branch {i}", current_state="ready", default=i == 0)
        for i in range(size)
    )
    endpoints = Endpoint.objects.bulk_create(
        Endpoint(project=project, branch=branch, current_state="idle") for branch in branches
    )
    Operation.objects.bulk_create(
        Operation(
            project=project,
            branch=endpoint.branch,
            endpoint=endpoint,
            action=Action.START_COMPUTE,
            status="finished",
            chain=uuid.uuid4(),
            resources=[],
            created_at=begun + timedelta(seconds=i),
            updated_at=begun + timedelta(seconds=i),
        )
        for i, endpoint in enumerate(endpoints)
    )
    return project


def make_snapshot(project: Project) -> Snapshot:
    """Create a snapshot of one of the project's branches."""
    data = Branch.objects.create(project=project, name="", current_state="ready", hidden=True)
    return Snapshot.objects.create(project=project, data_branch=data, name="rows")


def make_webhook(account: Account, *types: str, **attributes: Any) -> Webhook:
    """Create a webhook for these types of events, by default all. Nothing listens at its
    address."""
    return Webhook.objects.create(
        account=account,
        url="https://hooks.example/",
        event_types=list(types) or ["*"],
        secret="",
        **attributes,
    )
