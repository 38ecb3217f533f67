"""Applies a branch's roles and databases to its compute, for the actions (`actions.handlers`).

Each row is applied on its own. A row that cannot be applied keeps the reason (`catalog_error`), and
one operation fails for it: an operation fails only for rows that changed since the last operation
failed for them and that did not change after the operation itself was requested. So an obstacle
that a user creates for one role or database does not fail a later change of another one, and every
later operation retries what could not be applied.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psycopg

from controlplane.compute.catalog.applying import (
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
from controlplane.compute.catalog.reading import placeholder_of
from controlplane.compute.host.patience import OutOfPatience, patience
from controlplane.compute.host.steps import step
from controlplane.compute.processes.session import socket_dir
from controlplane.models import MAY_SUCCEED, Action, Branch, Database, Endpoint, Operation, Role
from controlplane.operations.catalog.importing import admit_to_pooler, import_branch_catalog
from controlplane.operations.details import ApplyConfigDetails

log = logging.getLogger(__name__)

# Seconds for retrying all rows that an earlier operation has already failed for.
RETRY_TIMEOUT = 10.0

Row = Role | Database


class NotApplied(psycopg.DatabaseError):
    """The compute refused rows of this operation; the message names each row and the reason."""

    def __init__(self, failures: Failures) -> None:
        super().__init__(
            "; ".join(f"{_named(item)}: {failure.words}" for item, failure in failures.items())
        )
        # True if every retry would fail for the same reason.
        self.is_final = all(failure.is_final for failure in failures.values())


def apply_to_compute(operation: Operation, endpoint: Endpoint) -> None:
    """Apply the branch's roles and databases to the compute, if they have changed.

    First the rows take over what SQL did in the compute, so that none of it is undone; afterwards
    they take over the oids of what was created. Raises NotApplied after everything that could be
    applied was applied, psycopg.Error if the compute cannot be queried at all.

    `applied_catalog_revision` is set only when nothing is left to apply. Until then every operation
    that calls this function tries again, and `catalog_mending` schedules one.
    """
    branch = endpoint.branch
    if branch.applied_catalog_revision == branch.catalog_revision:
        return
    with step("applying_catalog") as part:
        import_branch_catalog(branch)
        rows, failed = _apply_rows(operation, branch, socket_dir(endpoint.id))
        part.detail |= {"roles_and_databases": len(rows.by_item), "refused": len(failed)}
        refused = _keep_errors(operation, rows, failed)
        admit_to_pooler(branch.id)
        import_branch_catalog(branch)
        if refused:
            raise NotApplied({item: failed[item] for item in refused})
    if rows.are_all and not failed:
        # A change made after `branch` was read has an operation of its own still to come.
        revision = branch.catalog_revision
        Branch.objects.filter(id=branch.id).update(applied_catalog_revision=revision)


def _requested_at(operation: Operation) -> datetime:
    """Return the time of the newest change that the operation is to apply."""
    # A start applies what it finds, and has no such field.
    until = ApplyConfigDetails.from_json(operation.details).changed_until
    return datetime.fromisoformat(until) if until else operation.created_at


def _apply_until(operation: Operation, branch: Branch) -> datetime | None:
    """Return when the operation's changes were requested, if a later operation will apply what was
    changed since; None if there is no such operation.

    A branch may be created from this one between the two. Its rows date from the moment of the
    request for it, so the data that it gets must not be ahead of them.
    """
    later = Operation.objects.filter(
        branch=branch,
        action=Action.APPLY_CONFIG,
        status__in=MAY_SUCCEED,
        created_at__gt=operation.created_at,
    )
    return _requested_at(operation) if later.exists() else None


def _apply_rows(operation: Operation, branch: Branch, socket_dir: Path) -> "tuple[_Rows, Failures]":
    """Apply all rows that can be applied; returns the rows and the failures among them."""
    rows = _Rows.of(branch, until=_apply_until(operation, branch))
    old = {item for item in rows.by_item if _failed_already(rows.by_item[item], operation)}
    failed = _apply(branch, socket_dir, rows, rows.by_item.keys() - old)
    if operation.action == Action.START_COMPUTE:
        # Clients wait for the start, and a retry here would delay every start.
        failed |= _earlier_failures(rows, old)
    else:
        failed |= _retry(branch, socket_dir, rows, old)
    return rows, failed


@dataclass(frozen=True)
class _Rows:
    """The branch's rows, and what they require of the compute."""

    spec: CatalogSpec
    # Several rows per item: two databases with one name may both wait to be dropped.
    by_item: Mapping[Item, Sequence[Row]]
    # False if rows were left out, because a later operation applies them.
    are_all: bool

    @classmethod
    def of(cls, branch: Branch, *, until: datetime | None) -> "_Rows":
        """Return the rows that were at the time `until` as they are now; all rows if it is None."""
        by_item: dict[Item, list[Row]] = defaultdict(list)
        rows: list[Row] = [*branch.roles.order_by("id"), *branch.databases.order_by("id")]
        concerned = [row for row in rows if until is None or _was_same_at(row, until)]
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


def _was_same_at(row: Row, at: datetime) -> bool:
    """Return whether the row required the same at that time. A role's password may have changed
    since, but the compute does not get it."""
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
    """Apply these items and record in the rows that they were applied; returns the failures."""
    spec = rows.spec
    living = {row.applied_name for row in spec.databases}
    # Leave out a name that the compute still has for a database whose row is not deleted.
    gone = [row for row in spec.dropped_databases if row in items and row.name not in living]
    failed = drop_databases(socket_dir, gone)
    # Delete the rows before creating anything. Otherwise, after a crash, a new database with the
    # name of an old one would be dropped in the old one's place.
    for dropped in spec.dropped_databases:
        if dropped in items and dropped not in failed:
            branch.databases.filter(id__in=[row.pk for row in rows.by_item[dropped]]).delete()
    failed |= _blocked_by_old(branch, spec, items)
    failed |= apply_catalog(socket_dir, spec, [item for item in items if item not in failed])
    for item in items:
        if item not in failed:
            _keep_applied(branch, item, rows.by_item[item])
    return failed


def _blocked_by_old(branch: Branch, spec: CatalogSpec, items: Collection[Item]) -> Failures:
    """Return a failure for each new database whose name still belongs to a deleted one that could
    not be dropped."""
    kept = {row.applied_name or row.name for row in branch.databases.exclude(deleted_at=None)}
    return {
        row: Failure("the deleted database with this name could not be dropped yet")
        for row in spec.databases
        if row in items and row.applied_name is None and row.name in kept
    }


def _keep_applied(branch: Branch, item: Item, rows: Sequence[Row]) -> None:
    if isinstance(item, DroppedRole):
        branch.roles.filter(id__in=[row.pk for row in rows]).delete()
    elif isinstance(item, RoleSpec) and item.has_new_password:
        for row in rows:
            assert isinstance(row, Role)
            # A password that was reset again meanwhile has an operation of its own still to come.
            same = branch.roles.filter(id=row.pk, verifier=row.verifier)
            same.update(password_is_newer=False)
    elif isinstance(item, DatabaseSpec) and item.applied_name != item.name:
        branch.databases.filter(id__in=[row.pk for row in rows]).update(applied_name=item.name)


def _retry(branch: Branch, socket_dir: Path, rows: _Rows, items: Collection[Item]) -> Failures:
    """Retry the items that an earlier operation failed for, within RETRY_TIMEOUT seconds. This
    operation does not fail for them."""
    if not items:
        return {}
    try:
        with patience(RETRY_TIMEOUT):
            return _apply(branch, socket_dir, rows, items)
    except OutOfPatience:
        return _earlier_failures(rows, items)


def _earlier_failures(rows: _Rows, items: Collection[Item]) -> Failures:
    return {item: Failure(rows.by_item[item][0].catalog_error) for item in items}


def _failed_already(rows: Sequence[Row], operation: Operation) -> bool:
    """Return whether earlier operations have already failed for the rows as they are now."""
    return all(
        row.catalog_error_of is not None
        and row.updated_at <= row.catalog_error_of < _requested_at(operation)
        for row in rows
    )


def _keep_errors(operation: Operation, rows: _Rows, failed: Failures) -> list[Item]:
    """Store with each row why it could not be applied; returns the items that this operation fails
    for.

    A start does not count as having failed for a row: the next `apply_config` reports it.
    """
    answers = operation.action == Action.APPLY_CONFIG
    refused = []
    for item, of_item in rows.by_item.items():
        words = failed[item].words if item in failed else ""
        if words:
            fields = {"branch": of_item[0].branch_id, "item": _named(item), "error": words}
            log.warning("catalog item not applied", extra=fields)
        for row in of_item:
            # A change made after the operation was requested has an operation of its own to come.
            is_ours = row.updated_at <= _requested_at(operation)
            changes: dict[str, object] = {"catalog_error": words}
            if not words:
                changes["catalog_error_of"] = None
            elif is_ours and not _failed_already([row], operation):
                if answers:
                    changes["catalog_error_of"] = _requested_at(operation)
                refused.append(item)
            if any(getattr(row, name) != value for name, value in changes.items()):
                type(row)._default_manager.filter(id=row.pk).update(**changes)
    return refused
