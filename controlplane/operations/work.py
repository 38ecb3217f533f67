"""The work of each action: one function per action, called by the engine (see `actions`).

A function is called with its operation's branches locked on this host (`lock_branches`), never
twice at once, and again after a crash at any point of an earlier call. It raises Refused where
trying again would be in vain, anything else to be tried again. What its end means for the rows
stands in `effects`.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import psycopg

from controlplane.compute import branch_data, compute
from controlplane.compute.branch_data import NoSuchBranchData
from controlplane.compute.catalog import (
    CatalogSpec,
    DatabaseSpec,
    RoleSpec,
    apply_catalog,
    database_names,
    drop_databases,
)
from controlplane.compute.compute import ConfigurationRefused, OtherMajorVersion
from controlplane.compute.configuration import ComputeSpec
from controlplane.compute.integrity import check_data
from controlplane.compute.pooler import admit_roles
from controlplane.models import (
    Branch,
    BranchState,
    Database,
    Endpoint,
    Operation,
    Role,
)
from controlplane.operations.details import ApplyConfigDetails, Details, SuspendComputeDetails

log = logging.getLogger(__name__)


class Refused(Exception):
    """The operation cannot succeed however often it is tried; the message says why."""


@dataclass(frozen=True)
class Attempt:
    """One attempt at an operation's work."""

    operation: Operation
    details: Details
    # Whether a start stands behind this operation: somebody has come to connect.
    is_awaited: Callable[[], bool]

    @property
    def branch(self) -> Branch:
        assert self.operation.branch is not None
        return self.operation.branch

    @property
    def endpoint(self) -> Endpoint:
        """The operation's endpoint where it was when the operation was asked for, as that is
        what the attempt holds: a reassignment that came later has an operation of its own.

        Raises Refused where it was deleted.
        """
        endpoint = self.operation.endpoint
        assert endpoint is not None
        if endpoint.deleted_at is not None:
            raise Refused("the endpoint was deleted")
        endpoint.branch = self.branch
        return endpoint


def create_timeline(attempt: Attempt) -> None:
    branch_data.create_from_template(attempt.branch.id)


def create_branch(attempt: Attempt) -> None:
    branch = attempt.branch
    if branch.parent is None:
        raise Refused("the branch has no parent")
    try:
        branch_data.create_from_parent(branch.id, branch.parent.id)
    except NoSuchBranchData as error:
        raise Refused(str(error)) from error
    # The data came with the parent's roles and databases as they were last applied there.
    Branch.objects.filter(id=branch.id).update(
        applied_catalog_revision=branch.parent.applied_catalog_revision,
        logical_size=branch.parent.logical_size,
    )


def start_compute(attempt: Attempt) -> None:
    endpoint = attempt.endpoint
    _bring_up(endpoint, compute.start)
    try:
        _apply_catalog(endpoint)
    except psycopg.Error as error:
        # One role that cannot be made must not keep everyone out; the next start tries again.
        log.error("catalog not applied", extra={"endpoint": endpoint.id, "error": str(error)})


def suspend_compute(attempt: Attempt) -> None:
    """Called also for a deleted endpoint: the chain's later operations need it stopped."""
    endpoint, details = attempt.operation.endpoint, attempt.details
    assert endpoint is not None
    assert isinstance(details, SuspendComputeDetails)
    only_if_idle = details.if_idle and endpoint.deleted_at is None
    if only_if_idle and (attempt.is_awaited() or _was_used(endpoint)):
        return
    compute.stop(attempt.branch.id)


def apply_config(attempt: Attempt) -> None:
    """New settings or size, changed roles and databases, or another branch."""
    endpoint, details = attempt.endpoint, attempt.details
    assert isinstance(details, ApplyConfigDetails)
    left = details.from_branch_id
    if left and compute.running_endpoint(left) == endpoint.id:
        compute.stop(left)
    _bring_up(endpoint, compute.reconfigure)
    _apply_catalog(endpoint)


def check_availability(attempt: Attempt) -> None:
    """Prove that the branch's data is sound and that the endpoint starts and answers."""
    endpoint = attempt.endpoint
    was_running = compute.running_endpoint(endpoint.branch_id) == endpoint.id
    try:
        _bring_up(endpoint, compute.start)
        check_data(compute.socket_dir(endpoint.id))
    finally:
        if not was_running and not attempt.is_awaited():
            compute.stop(endpoint.branch_id)


def delete_timeline(attempt: Attempt) -> None:
    compute.stop(attempt.branch.id)
    branch_data.remove(attempt.branch.id)


def delete_tenant(attempt: Attempt) -> None:
    for branch in Branch.objects.filter(project_id=attempt.operation.project_id):
        compute.stop(branch.id)
        branch_data.remove(branch.id)


def compute_spec(endpoint: Endpoint) -> ComputeSpec:
    return ComputeSpec(
        endpoint_id=endpoint.id,
        branch_id=endpoint.branch_id,
        min_cu=endpoint.autoscaling_limit_min_cu,
        max_cu=endpoint.autoscaling_limit_max_cu,
        pg_settings=endpoint.settings.get("pg_settings", {}),
    )


def _was_used(endpoint: Endpoint) -> bool:
    """Whether a client has come since the endpoint was found idle."""
    try:
        last = compute.last_activity(endpoint.id)
    except psycopg.Error:
        return False
    return last is not None and (endpoint.last_active is None or last > endpoint.last_active)


def _bring_up(endpoint: Endpoint, bring_up: Callable[[ComputeSpec], None]) -> None:
    if endpoint.branch.current_state != BranchState.READY:
        raise Refused(f"the branch {endpoint.branch_id} was not created")
    try:
        bring_up(compute_spec(endpoint))
    except (ConfigurationRefused, NoSuchBranchData, OtherMajorVersion) as error:
        raise Refused(str(error)) from error


def _apply_catalog(endpoint: Endpoint) -> None:
    """Have the compute hold the branch's roles and databases, where they have changed."""
    branch = endpoint.branch
    if branch.applied_catalog_revision == branch.catalog_revision:
        return
    socket_dir = compute.socket_dir(endpoint.id)
    _forget_dropped_by_sql(branch, socket_dir)
    databases = list(branch.databases.filter(deleted_at=None))
    roles = list(branch.roles.all())
    _drop_databases(branch, socket_dir, kept={row.applied_name for row in databases})
    apply_catalog(
        socket_dir,
        CatalogSpec(
            roles=[
                RoleSpec(role.name, role.verifier, login=not role.no_login)
                for role in roles
                if role.deleted_at is None
            ],
            databases=[
                DatabaseSpec(database.name, database.owner_name, database.applied_name)
                for database in databases
            ],
            dropped_roles=[role.name for role in roles if role.deleted_at],
        ),
    )
    for database in databases:
        Database.objects.filter(id=database.id).update(applied_name=database.name)
    branch.roles.filter(id__in=[role.id for role in roles if role.deleted_at]).delete()
    admit_roles(branch.id, Role.that_may_connect(branch.id))
    Branch.objects.filter(id=branch.id).update(applied_catalog_revision=branch.catalog_revision)


def _forget_dropped_by_sql(branch: Branch, socket_dir: Path) -> None:
    """A database that was made once and is there no more was dropped by its owner: so be it."""
    present = database_names(socket_dir)
    for row in branch.databases.filter(deleted_at=None).exclude(applied_name=None):
        if present.isdisjoint({row.name, row.applied_name}):
            row.delete()


def _drop_databases(branch: Branch, socket_dir: Path, *, kept: Collection[str | None]) -> None:
    """Drop what was deleted, but none of those that a living row is still `kept` under.

    The rows go before anything is made: after a crash from then on, a new database that has
    the name of an old one must not be dropped in its place.
    """
    gone = list(branch.databases.exclude(deleted_at=None))
    names = [row.applied_name or row.name for row in gone]
    drop_databases(socket_dir, [name for name in names if name not in kept])
    branch.databases.filter(id__in=[row.id for row in gone]).delete()
