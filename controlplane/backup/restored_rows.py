"""Makes the rows of a restored service say what is true of its data.

The rows are younger than the data of any branch: a role or a database may have been made, renamed
or dropped between the two moments, or a whole branch made. And nothing runs on the new host yet.
"""

from collections.abc import Collection, Mapping

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from controlplane.backup.manifest import BranchCopy, Manifest
from controlplane.models import (
    UNFINISHED,
    Action,
    Branch,
    BranchState,
    Database,
    Endpoint,
    EndpointState,
    Operation,
    Project,
    Role,
)


@transaction.atomic
def settle_rows(manifest: Manifest) -> None:
    """Bring all rows to what was restored. Nothing else uses the database meanwhile."""
    for endpoint in Endpoint.objects.filter(
        project__region_id=settings.REGION, current_state=EndpointState.ACTIVE
    ):
        # It ran until then: what it ran is counted, what it lay in the backup is not.
        endpoint.enter(EndpointState.IDLE, now=manifest.rows_at)
    for branch_id, copy in manifest.branches.items():
        _expect_catalog(branch_id, copy)
    Branch.objects.filter(id__in=manifest.not_copied).update(current_state=BranchState.INIT)
    _forget_younger({*manifest.branches, *manifest.not_copied})


def _expect_catalog(branch_id: str, copy: BranchCopy) -> None:
    """Have the first start compare every role and database with the data, as it was copied."""
    Branch.objects.filter(id=branch_id).update(applied_catalog_revision=0)
    Branch.objects.filter(id=branch_id, catalog_revision=0).update(catalog_revision=1)
    for database in Database.objects.filter(branch_id=branch_id):
        database.applied_name = copy.databases.get(str(database.id))
        database.save(update_fields=["applied_name"])
    _drop_databases(branch_id, copy.databases)
    _drop_roles(branch_id, copy.roles)


def _drop_databases(branch_id: str, copied: Mapping[str, str]) -> None:
    """Those that are in the data, and whose rows were gone later, are to be dropped there too."""
    rows = Database.objects.filter(branch_id=branch_id)
    known = set(map(str, rows.values_list("id", flat=True)))
    now = timezone.now()
    Database.objects.bulk_create(
        Database(branch_id=branch_id, name=name, applied_name=name, owner_name="", deleted_at=now)
        for row, name in copied.items()
        if row not in known
    )


def _drop_roles(branch_id: str, copied: Collection[str]) -> None:
    known = set(Role.objects.filter(branch_id=branch_id).values_list("name", flat=True))
    now = timezone.now()
    Role.objects.bulk_create(
        Role(branch_id=branch_id, name=name, verifier="", no_login=True, deleted_at=now)
        for name in copied
        if name not in known
    )


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
    now = timezone.now()
    Endpoint.objects.filter(branch_id__in=ids, deleted_at=None).update(
        deleted_at=now, updated_at=now
    )
    Branch.objects.filter(id__in=ids).update(deleted_at=now, updated_at=now)
    for project in projects:
        living = project.branches.filter(deleted_at=None).order_by("created_at")
        oldest = living.first()
        if oldest is None:
            Project.objects.filter(id=project.id).update(deleted_at=now, updated_at=now)
        elif not living.filter(default=True).exists():
            Branch.objects.filter(id=oldest.id).update(default=True)
