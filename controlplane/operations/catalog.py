"""Has a branch's compute hold its roles and databases, for the actions (see `work`).

Each row is applied on its own. A row that cannot be keeps the reason (`catalog_error`), and an
operation fails for it once: for those rows alone that were changed since the last operation
answered for them, and no later than it was asked for itself. So nothing that a user has put in
the way of one role or database fails a later change of another, and what could not be done is
tried again with each of them.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psycopg

from controlplane.compute.catalog import (
    CatalogSpec,
    DatabaseSpec,
    DroppedDatabase,
    DroppedRole,
    Failure,
    Failures,
    Item,
    RoleSpec,
    apply_catalog,
    drop_databases,
)
from controlplane.compute.catalog_reading import placeholder_of
from controlplane.compute.patience import OutOfPatience, patience
from controlplane.compute.session import socket_dir
from controlplane.compute.steps import step
from controlplane.models import HOPEFUL, Action, Branch, Database, Endpoint, Operation, Role
from controlplane.operations.by_sql import admit_to_pooler, take_in_branch

log = logging.getLogger(__name__)

# Seconds for another try of all that has failed an earlier operation already.
RETRIED_BOUND = 10.0

Row = Role | Database


class NotApplied(psycopg.DatabaseError):
    """The compute refused rows of this operation's; the message names each, and why."""

    def __init__(self, failures: Failures) -> None:
        super().__init__(
            "; ".join(f"{_named(item)}: {failure.words}" for item, failure in failures.items())
        )
        # Whether it would say the same however often one tried.
        self.is_final = all(failure.is_final for failure in failures.values())


def bring_to_catalog(operation: Operation, endpoint: Endpoint) -> None:
    """Have the compute hold the branch's roles and databases, where they have changed.

    What SQL did there comes into the rows before, so that nothing of it is taken back, and what
    the compute calls the new ones after. Raises NotApplied once everything that could be applied
    was, psycopg.Error where the compute cannot be asked at all.

    `applied_catalog_revision` follows only once nothing is left: until then every operation that
    comes here tries again, and `catalog_mending` schedules one.
    """
    branch = endpoint.branch
    if branch.applied_catalog_revision == branch.catalog_revision:
        return
    with step("applying_catalog") as part:
        take_in_branch(branch)
        rows, failed = _bring(operation, branch, socket_dir(endpoint.id))
        part.detail |= {"roles_and_databases": len(rows.by_item), "refused": len(failed)}
        told = _keep_errors(operation, rows, failed)
        admit_to_pooler(branch.id)
        take_in_branch(branch)
        if told:
            raise NotApplied({item: failed[item] for item in told})
    if rows.are_all and not failed:
        # What was changed since `branch` was read has an operation of its own to come.
        revision = branch.catalog_revision
        Branch.objects.filter(id=branch.id).update(applied_catalog_revision=revision)


def _until(operation: Operation, branch: Branch) -> datetime | None:
    """When the operation was asked for, where what was changed later has one of its own to come;
    None where it has not.

    Between the two a branch may be made of this one. Its rows are of the moment when that was
    asked for, so the data that it gets must not be ahead of them.
    """
    later = Operation.objects.filter(
        branch=branch,
        action=Action.APPLY_CONFIG,
        status__in=HOPEFUL,
        created_at__gt=operation.created_at,
    )
    return operation.created_at if later.exists() else None


def _bring(operation: Operation, branch: Branch, socket_dir: Path) -> "tuple[_Rows, Failures]":
    """Apply all that can be; returns what there was, and what failed of it."""
    rows = _Rows.of(branch, until=_until(operation, branch))
    old = {item for item in rows.by_item if _was_answered_for(rows.by_item[item], operation)}
    failed = _apply(branch, socket_dir, rows, rows.by_item.keys() - old)
    if operation.action == Action.START_COMPUTE:
        # Clients wait, and would with every start.
        failed |= _as_before(rows, old)
    else:
        failed |= _retry(branch, socket_dir, rows, old)
    return rows, failed


@dataclass(frozen=True)
class _Rows:
    """The branch's rows, and what they ask of the compute."""

    spec: CatalogSpec
    # Two databases of one name may both wait to be dropped.
    by_item: Mapping[Item, Sequence[Row]]
    # Whether there are no others, which a later operation brings about.
    are_all: bool

    @classmethod
    def of(cls, branch: Branch, *, until: datetime | None) -> "_Rows":
        """Those that were as they are now at the time `until`; all without one."""
        by_item: dict[Item, list[Row]] = defaultdict(list)
        rows: list[Row] = [*branch.roles.order_by("id"), *branch.databases.order_by("id")]
        concerned = [row for row in rows if until is None or _stood(row, until)]
        replication = branch.project.replicates_logically
        for row in concerned:
            by_item[_item_of(row, replication=replication)].append(row)
        return cls(
            CatalogSpec(
                roles=[item for item in by_item if isinstance(item, RoleSpec)],
                databases=[item for item in by_item if isinstance(item, DatabaseSpec)],
                dropped_roles=[item for item in by_item if isinstance(item, DroppedRole)],
                dropped_databases=[item for item in by_item if isinstance(item, DroppedDatabase)],
            ),
            by_item,
            are_all=len(concerned) == len(rows),
        )


def _stood(row: Row, at: datetime) -> bool:
    """Whether the row asked for the same already at that time. A role's password, which may have
    changed since, is nothing to the compute."""
    if isinstance(row, Role):
        return (row.deleted_at or row.created_at) <= at
    return row.updated_at <= at


def _item_of(row: Row, *, replication: bool) -> Item:
    if isinstance(row, Role):
        if row.deleted_at:
            return DroppedRole(row.name, row.compute_oid)
        return RoleSpec(
            row.name,
            login=not row.no_login,
            replication=replication,
            oid=row.compute_oid,
            is_plain=row.made_by_sql,
            password=placeholder_of(row.verifier),
            has_new_password=row.password_is_newer,
            sessions_end_at=row.sessions_end_at,
        )
    if row.deleted_at:
        return DroppedDatabase(row.applied_name or row.name)
    return DatabaseSpec(row.name, row.owner_name, row.applied_name)


def _named(item: Item) -> str:
    kind = "role" if isinstance(item, RoleSpec | DroppedRole) else "database"
    return f'{kind} "{item.name}"'


def _apply(branch: Branch, socket_dir: Path, rows: _Rows, items: Collection[Item]) -> Failures:
    """Apply these and keep that they were; returns what failed."""
    spec = rows.spec
    living = {row.applied_name for row in spec.databases}
    # None of those that a living row is still known by.
    gone = [row for row in spec.dropped_databases if row in items and row.name not in living]
    failed = drop_databases(socket_dir, gone)
    # The rows go before anything is made: after a crash from then on, a new database that has
    # the name of an old one must not be dropped in its place.
    for dropped in spec.dropped_databases:
        if dropped in items and dropped not in failed:
            branch.databases.filter(id__in=[row.pk for row in rows.by_item[dropped]]).delete()
    failed |= _behind_the_old(branch, spec, items)
    failed |= apply_catalog(socket_dir, spec, [item for item in items if item not in failed])
    for item in items:
        if item not in failed:
            _keep_applied(branch, item, rows.by_item[item])
    return failed


def _behind_the_old(branch: Branch, spec: CatalogSpec, items: Collection[Item]) -> Failures:
    """Databases whose name is still an old one's, which could not be dropped."""
    kept = {row.applied_name or row.name for row in branch.databases.exclude(deleted_at=None)}
    return {
        row: Failure("the deleted database of this name could not be dropped yet")
        for row in spec.databases
        if row in items and row.applied_name is None and row.name in kept
    }


def _keep_applied(branch: Branch, item: Item, rows: Sequence[Row]) -> None:
    if isinstance(item, DroppedRole):
        branch.roles.filter(id__in=[row.pk for row in rows]).delete()
    elif isinstance(item, RoleSpec) and item.has_new_password:
        for row in rows:
            assert isinstance(row, Role)
            # One that was reset again meanwhile has an operation of its own to come.
            same = branch.roles.filter(id=row.pk, verifier=row.verifier)
            same.update(password_is_newer=False)
    elif isinstance(item, DatabaseSpec) and item.applied_name != item.name:
        branch.databases.filter(id__in=[row.pk for row in rows]).update(applied_name=item.name)


def _retry(branch: Branch, socket_dir: Path, rows: _Rows, items: Collection[Item]) -> Failures:
    """Try again what has failed an earlier operation; it fails none but its own time."""
    if not items:
        return {}
    try:
        with patience(RETRIED_BOUND):
            return _apply(branch, socket_dir, rows, items)
    except OutOfPatience:
        return _as_before(rows, items)


def _as_before(rows: _Rows, items: Collection[Item]) -> Failures:
    return {item: Failure(rows.by_item[item][0].catalog_error) for item in items}


def _was_answered_for(rows: Sequence[Row], operation: Operation) -> bool:
    """Whether earlier operations have failed for the rows as they stand."""
    return all(
        row.catalog_error_of is not None
        and row.updated_at <= row.catalog_error_of < operation.created_at
        for row in rows
    )


def _keep_errors(operation: Operation, rows: _Rows, failed: Failures) -> list[Item]:
    """Note on each row why it could not be applied; returns what this operation fails for.

    A start does not fail for rows, so it does not answer for them: the next `apply_config` does.
    """
    answers = operation.action == Action.APPLY_CONFIG
    told = []
    for item, of_item in rows.by_item.items():
        words = failed[item].words if item in failed else ""
        if words:
            fields = {"branch": of_item[0].branch_id, "item": _named(item), "error": words}
            log.warning("catalog item not applied", extra=fields)
        for row in of_item:
            # What was changed after the operation was asked for has one of its own to come.
            is_ours = row.updated_at <= operation.created_at
            changes: dict[str, object] = {"catalog_error": words}
            if not words:
                changes["catalog_error_of"] = None
            elif is_ours and not _was_answered_for([row], operation):
                if answers:
                    changes["catalog_error_of"] = operation.created_at
                told.append(item)
            if any(getattr(row, name) != value for name, value in changes.items()):
                type(row)._default_manager.filter(id=row.pk).update(**changes)
    return told
