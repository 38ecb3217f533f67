"""Makes the rows of a restored service say what is true of its data.

The rows are younger than the data of any branch: a role or a database may have been made, renamed
or dropped between the two moments, or a whole branch made. And nothing runs on the new host yet.
"""

from collections.abc import Collection, Mapping
from datetime import datetime

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q

from controlplane import clock
from controlplane.backup.manifest import BranchCopy, Manifest
from controlplane.models import (
    UNFINISHED,
    Action,
    Branch,
    BranchState,
    Database,
    Endpoint,
    EndpointState,
    Meter,
    Operation,
    Project,
    Region,
    Role,
    Snapshot,
)
from controlplane.operations.own_region import adopt_region
from controlplane.operations.states import enter
from controlplane.services.event_tail import renumber_events


@transaction.atomic
def settle_rows(manifest: Manifest) -> None:
    """Bring all rows to what was restored. Nothing else uses the database meanwhile."""
    renumber_events()
    # The data of deleted projects is in no backup.
    Project.objects.filter(region_id=settings.REGION).exclude(recoverable_until=None).update(
        recoverable_until=None
    )
    _stop_meters(manifest.rows_at)
    for endpoint in Endpoint.objects.select_related("project").filter(
        project__region_id=settings.REGION, current_state=EndpointState.ACTIVE
    ):
        # It ran until then: what it ran is counted, what it lay in the backup is not.
        reason, now = "it was restored from a backup", manifest.rows_at
        enter(endpoint.project, endpoint, EndpointState.IDLE, now=now, reason=reason)
    # First those that are still to be made of another: that one's rows are as they were.
    of_another = Q(parent__in=manifest.branches) | Q(schema_of__in=manifest.branches)
    for branch in Branch.objects.filter(of_another, current_state=BranchState.INIT):
        if branch.source:
            _expect_catalog_of_source(branch, branch.source, manifest.branches[branch.source.id])
    for branch_id, copy in manifest.branches.items():
        _expect_catalog(branch_id, copy.databases, copy)
        Branch.objects.filter(id=branch_id, catalog_revision=0).update(catalog_revision=1)
        Branch.objects.filter(id=branch_id).update(applied_catalog_revision=0, catalog_mark="")
    Branch.objects.filter(id__in=manifest.not_copied).update(current_state=BranchState.INIT)
    _forget_younger({*manifest.branches, *manifest.not_copied})
    # The rows remember the state directory that they were copied from.
    adopt_region(Region.objects.get(id=settings.REGION))


def _stop_meters(rows_at: datetime) -> None:
    """Count what the branches stored until then, and not what they lay in the backup."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT perch_add_interval(branch_id, stored_since, %s, 0, stored_bytes)"
            " FROM controlplane_meter WHERE stored_bytes > 0 AND stored_since < %s",
            [rows_at, rows_at],
        )
    Meter.objects.update(stored_since=clock.now())


def _expect_catalog(branch_id: str, databases: Mapping[str, str], copy: BranchCopy) -> None:
    """Have the first start bring every role and database of the data to the rows.

    `databases` says by row what each is called in the data. What is there and has no row any
    more gets one, to be dropped.
    """
    rows = Database.objects.filter(branch_id=branch_id)
    for row in rows:
        row.applied_name = databases.get(str(row.id))
        row.compute_oid = row.applied_owner = None
        row.save(update_fields=["applied_name", "compute_oid", "applied_owner"])
    now = clock.now()
    expected = set(rows.exclude(applied_name=None).values_list("applied_name", flat=True))
    Database.objects.bulk_create(
        Database(branch_id=branch_id, name=name, applied_name=name, owner_name="", deleted_at=now)
        for name in copy.databases.values()
        if name not in expected
    )
    # Nor is what they have in the data the last that was known of them.
    Role.objects.filter(branch_id=branch_id).update(compute_oid=None, password_is_newer=True)
    roles = set(Role.objects.filter(branch_id=branch_id).values_list("name", flat=True))
    Role.objects.bulk_create(
        Role(branch_id=branch_id, name=name, verifier="", no_login=True, deleted_at=now)
        for name in copy.roles
        if name not in roles
    )


def _expect_catalog_of_source(branch: Branch, source: Branch, copy: BranchCopy) -> None:
    """Its data will be the source's, as that was copied; its rows are of the source's later."""
    of_source = Database.objects.filter(branch=source).exclude(applied_name=None)
    in_data = {row.applied_name: copy.databases.get(str(row.id)) for row in of_source}
    databases = {
        str(row.id): name
        for row in Database.objects.filter(branch=branch)
        if (name := in_data.get(row.applied_name)) is not None
    }
    _expect_catalog(branch.id, databases, copy)


def _forget_younger(kept: Collection[str]) -> None:
    """Branches that were made ready in the last moment, between the last copy and the rows, are
    not in the backup: they count as deleted, and a project that has no other with them."""
    doomed = Operation.objects.filter(action=Action.DELETE_TIMELINE, status__in=UNFINISHED)
    younger = (
        Branch.objects.filter(
            project__region_id=settings.REGION,
            project__deleted_at=None,
            deleted_at=None,
            current_state=BranchState.READY,
        )
        .exclude(id__in=kept)
        .exclude(id__in=doomed.values("branch_id"))
    )
    ids = list(younger.values_list("id", flat=True))
    projects = list(Project.objects.filter(branches__in=ids).distinct())
    now = clock.now()
    Endpoint.objects.filter(branch_id__in=ids, deleted_at=None).update(
        deleted_at=now, updated_at=now
    )
    Branch.objects.filter(id__in=ids).update(deleted_at=now, updated_at=now)
    Snapshot.objects.filter(data_branch__in=ids).delete()
    for project in projects:
        living = project.branches.filter(deleted_at=None, hidden=False).order_by("created_at")
        oldest = living.first()
        if oldest is None:
            Project.objects.filter(id=project.id).update(deleted_at=now, updated_at=now)
        elif not living.filter(default=True).exists():
            Branch.objects.filter(id=oldest.id).update(default=True)
