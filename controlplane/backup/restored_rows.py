"""Makes the rows of a restored service match its data.

The rows are younger than the data of every branch. Between the two moments a role or a database may
have been created, renamed or dropped, or a whole branch created. Also, nothing runs on the new host
yet.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q

from controlplane import clock
from controlplane.backup.manifest import BranchCopy, Manifest
from controlplane.backup.taking import branches_with_data, ids_being_deleted, replaced_since
from controlplane.models import (
    CATALOG_UNREAD,
    UNFINISHED,
    Action,
    Branch,
    BranchState,
    Database,
    Endpoint,
    EndpointState,
    HistoryChain,
    Host,
    Operation,
    Project,
    Role,
    Snapshot,
)
from controlplane.operations.own_host import adopt_host
from controlplane.operations.states import enter
from controlplane.services.monitoring.events import renumber_events

# Whose meters are stopped, as conditions in SQL.
_ALL_METERS = "true"
_METERS_OF_THE_HOST = (
    "branch_id IN (SELECT b.id FROM controlplane_branch b"
    " JOIN controlplane_project p ON p.id = b.project_id WHERE p.host_id = %(host)s)"
)


@transaction.atomic
def settle_rows(manifest: Manifest) -> None:
    """Make all rows match what was restored. Nothing else uses the database meanwhile."""
    renumber_events()
    _settle_host(manifest.rows_at, reason="it was restored from a backup")
    _expect_catalogs(manifest.branches)
    Branch.objects.filter(id__in=manifest.not_copied).update(current_state=BranchState.INIT)
    _forget_younger({*manifest.branches, *manifest.not_copied})


@transaction.atomic
def settle_lost_host(restored: Collection[str], copies: Mapping[str, BranchCopy]) -> list[str]:
    """Make the rows of this host, which was lost, match the branches that were restored. The rows
    may be much younger than the data, and other hosts use the database meanwhile.

    The catalog of a branch among `copies` follows its rows, which know later changes of the API.
    The rows of any other branch follow the catalog of its data. Returns the branches that the rows
    call ready and that have no data.
    """
    host = Host.objects.select_for_update().get(id=settings.HOST_NAME)
    projects = Project.objects.filter(host=host).order_by("id")
    # As every transaction that changes a project does (`operations.locks`).
    list(projects.select_for_update(no_key=True).values_list("id", flat=True))
    lost_at = host.computes_seen_at or clock.now()
    _settle_host(lost_at, reason="its host was lost", meters=_METERS_OF_THE_HOST)
    # Since their copy, other data replaced that of these branches, and the rows describe it.
    replaced = replaced_since(copies)
    expected = {name: copies[name] for name in restored if name in copies and name not in replaced}
    branches_with_data().filter(id__in=restored).update(catalog_mark=CATALOG_UNREAD)
    _expect_catalogs(expected)
    missing = branches_with_data().exclude(id__in=[*restored, *ids_being_deleted()])
    # They stay ready. Otherwise the next client would get a new and empty branch in their place.
    ids = list(missing.values_list("id", flat=True))
    Snapshot.objects.filter(data_branch__in=ids).delete()
    return ids


def _expect_catalogs(copies: Mapping[str, BranchCopy]) -> None:
    """Change the rows of the branches so that the first start applies every role and database."""
    # First the branches still to be made from another one, whose rows are unchanged so far.
    of_another = Q(parent__in=copies) | Q(schema_of__in=copies)
    for branch in Branch.objects.filter(of_another, current_state=BranchState.INIT):
        if branch.source:
            _expect_catalog_of_source(branch, branch.source, copies[branch.source.id])
    for branch_id, copy in copies.items():
        _expect_catalog(branch_id, copy.databases, copy)
        Branch.objects.filter(id=branch_id, catalog_revision=0).update(catalog_revision=1)
        Branch.objects.filter(id=branch_id).update(applied_catalog_revision=0, catalog_mark="")


@transaction.atomic
def settle_rows_from_store(rows_at: datetime, restored: Collection[str]) -> None:
    """Make all rows match the branches that were restored from the store. Their data is of other
    moments than the rows, mostly later ones. Its catalog is the truth, which the first start
    imports. Nothing else uses the database meanwhile."""
    renumber_events()
    _settle_host(rows_at, reason="it was restored from the store")
    ready = branches_with_data()
    ready.filter(id__in=restored).update(catalog_mark=CATALOG_UNREAD)
    ready.exclude(id__in=restored).update(current_state=BranchState.INIT)


def _settle_host(at: datetime, *, reason: str, meters: str = _ALL_METERS) -> None:
    """Settle what concerns the host: nothing runs on it since `at`, and it has no history yet."""
    # A backup does not contain the data of deleted projects.
    Project.objects.filter(host_id=settings.HOST_NAME).exclude(recoverable_until=None).update(
        recoverable_until=None
    )
    HistoryChain.objects.filter(branch__project__host_id=settings.HOST_NAME).delete()
    _stop_meters(at, meters)
    Branch.objects.filter(project__host_id=settings.HOST_NAME).update(history_bytes=0)
    for endpoint in Endpoint.objects.select_related("project").filter(
        project__host_id=settings.HOST_NAME, current_state=EndpointState.ACTIVE
    ):
        # Its use until that moment counts; the time after does not.
        enter(endpoint.project, endpoint, EndpointState.IDLE, now=at, reason=reason)
    # The rows still name the state directory that they were copied from.
    adopt_host(Host.objects.get(id=settings.HOST_NAME))


def _stop_meters(at: datetime, meters: str) -> None:
    """Count what the branches stored until this moment, but not for the time since. `meters` is a
    condition in SQL."""
    values: dict[str, Any] = {"at": at, "now": clock.now(), "host": settings.HOST_NAME}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT perch_add_interval("  # noqa: S608 # ours
            "branch_id, stored_since, %(at)s, 0, stored_bytes, history_bytes)"
            f" FROM controlplane_meter WHERE stored_since < %(at)s AND {meters}",
            values,
        )
        cursor.execute(
            f"UPDATE controlplane_meter SET stored_since = %(now)s WHERE {meters}",  # noqa: S608 # ours
            values,
        )


def _expect_catalog(branch_id: str, databases: Mapping[str, str], copy: BranchCopy) -> None:
    """Change the rows so that the first start applies every role and database.

    `databases` holds the name that each database has in the data, by the id of its row. What the
    data holds without a row gets a row that is marked as deleted, so that it is dropped.
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
    # The roles' oids and passwords in the data may be older than the rows, too.
    Role.objects.filter(branch_id=branch_id).update(compute_oid=None, password_is_newer=True)
    roles = set(Role.objects.filter(branch_id=branch_id).values_list("name", flat=True))
    Role.objects.bulk_create(
        Role(branch_id=branch_id, name=name, verifier="", no_login=True, deleted_at=now)
        for name in copy.roles
        if name not in roles
    )


def _expect_catalog_of_source(branch: Branch, source: Branch, copy: BranchCopy) -> None:
    """Do the same for a branch that is still to be made from `source`. Its data will be the
    source's as it was copied, but its rows follow later rows of the source."""
    of_source = Database.objects.filter(branch=source).exclude(applied_name=None)
    in_data = {row.applied_name: copy.databases.get(str(row.id)) for row in of_source}
    databases = {
        str(row.id): name
        for row in Database.objects.filter(branch=branch)
        if (name := in_data.get(row.applied_name)) is not None
    }
    _expect_catalog(branch.id, databases, copy)


def _forget_younger(kept: Collection[str]) -> None:
    """Mark branches as deleted that became ready between the last copy and the copy of the rows,
    and so are not in the backup. A project that has no other branch is marked too."""
    doomed = Operation.objects.filter(action=Action.DELETE_TIMELINE, status__in=UNFINISHED)
    younger = branches_with_data().exclude(id__in=kept).exclude(id__in=doomed.values("branch_id"))
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
