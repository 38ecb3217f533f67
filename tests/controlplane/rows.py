"""Writes rows directly into the database, for tests of the API alone."""

import json
import uuid
from datetime import timedelta
from typing import Any

from django.test import Client as DjangoClient
from django.utils import timezone

from controlplane.database.version import perch_version
from controlplane.models import (
    Account,
    Action,
    Branch,
    Endpoint,
    Host,
    Operation,
    Project,
    Region,
    Snapshot,
    Webhook,
)


def make_host(
    name: str, region: str | None = None, *, default: bool = False, **fields: Any
) -> Host:
    """Create a host whose worker runs, and its region unless that exists."""
    region_id = region or name
    Region.objects.get_or_create(
        id=region_id, name=region_id, defaults={"host": "localhost", "default": default}
    )
    version = fields.get("version", perch_version())
    published = {"pg_version": 18, "version": version, "jobs_version": version}
    running = {**published, "worker_seen_at": timezone.now()}
    return Host.objects.create(
        id=name, region_id=region_id, **{"address": "localhost", **running, **fields}
    )


def make_project(account: Account, host: Host, *, size: int = 1) -> Project:
    """Create a project with `size` branches, endpoints and finished operations."""
    project = Project.objects.create(
        account=account, region_id=host.region_id, host=host, name="rows", pg_version=18
    )
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


def send(api: DjangoClient, method: str, path: str, body: Any = None) -> Any:
    """Send the request to the API in this process. Returns its answer."""
    text = "" if body is None else json.dumps(body)
    return api.generic(method, f"/api/v2{path}", text, content_type="application/json")
