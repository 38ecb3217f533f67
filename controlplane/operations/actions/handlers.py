"""The work of each action: one function per action, called by the engine (see `actions`).

A function is called with its operation's branches locked on this host (`lock_branches`). It never
runs twice at the same time, and it is called again after a crash at any point of an earlier call.
It raises StartRefused if a retry would be useless; any other exception causes a retry. What the end
of an operation means for the rows is in `effects`."""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import psycopg

from controlplane import clock
from controlplane.compute import compute, observation
from controlplane.compute.compute import OtherMajorVersion
from controlplane.compute.data import branch_data
from controlplane.compute.data.branch_data import NoSuchBranchData
from controlplane.compute.data.integrity import check_data
from controlplane.compute.host.binaries import PostgresUnusable
from controlplane.compute.host.filesystem import LockTimeout, forget_lock
from controlplane.compute.host.space import NotEnoughSpace
from controlplane.compute.host.steps import step
from controlplane.compute.masking.functions import RuleRefused
from controlplane.compute.processes.process import StartFailed
from controlplane.compute.processes.session import socket_dir
from controlplane.compute.schemas.schema import SchemaUnreadable
from controlplane.compute.schemas.schema_only import create_schema_only
from controlplane.history.operations import (
    begin_history,
    begins_with_copy,
    from_template,
    make_from_moment,
    note_history,
    replacing_data,
)
from controlplane.models import (
    GIVEN_UP,
    Action,
    Branch,
    Endpoint,
    EndpointState,
    InitSource,
    Operation,
)
from controlplane.operations.actions.computes import (
    StartRefused,
    count_written,
    prepare_for_clients,
    run_compute,
    start,
)
from controlplane.operations.actions.words import failure_message
from controlplane.operations.catalog.applying import NotApplied, apply_to_compute
from controlplane.operations.catalog.importing import import_before_stop, import_branch_catalog
from controlplane.operations.details import (
    ApplyConfigDetails,
    CheckAvailabilityDetails,
    CreateBranchDetails,
    Details,
    SuspendComputeDetails,
)
from controlplane.operations.locks import locked_project
from controlplane.operations.masked_data import copying_masked
from controlplane.operations.states import enter

log = logging.getLogger(__name__)

# How many times in a row an idle endpoint is kept running for pooled clients that do not leave. A
# use in between, and every stop of the compute, begins the count anew.
MAX_HELD = 2
_held: Counter[str] = Counter()


@dataclass(frozen=True)
class Attempt:
    """One attempt at an operation's work."""

    operation: Operation
    details: Details
    # Returns whether a start waits behind this operation, because a client wants to connect.
    is_awaited: Callable[[], bool]

    @property
    def branch(self) -> Branch:
        assert self.operation.branch is not None
        return self.operation.branch

    @property
    def endpoint(self) -> Endpoint:
        """The operation's endpoint, on the branch that it had when the operation was requested:
        that is the branch that the attempt holds. A later reassignment has an operation of its own.

        Raises StartRefused if the endpoint was deleted.
        """
        endpoint = self.operation.endpoint
        assert endpoint is not None
        if endpoint.deleted_at is not None:
            raise StartRefused("the endpoint was deleted")
        endpoint.branch = self.branch
        return endpoint


def create_timeline(attempt: Attempt) -> None:
    project = attempt.operation.project
    try:
        branch_data.create_from_template(
            attempt.branch.id,
            major=project.pg_version,
            locale=project.locale,
            begin_history=from_template(project),
        )
        note_history(attempt.branch.id)
    except (NotEnoughSpace, PostgresUnusable) as error:
        raise StartRefused(failure_message(error)) from error


def create_branch(attempt: Attempt) -> None:
    branch, details = attempt.branch, attempt.details
    assert isinstance(details, CreateBranchDetails)
    if details.source_branch_id and details.kept_as:
        _replace_data(attempt.operation, branch, details.source_branch_id, kept_as=details.kept_as)
        return
    source = branch.source
    if details.source_branch_id:
        source = Branch.objects.filter(id=details.source_branch_id).first()
    if source is None:
        raise StartRefused(
            "the branch that it was to be created from does not exist any more; delete it"
        )
    if details.names_moment:
        make_from_moment(branch, source, details)
    else:
        _make_from_present(attempt.operation, branch, source)
    if not branch.hidden:
        begin_history(attempt.operation, branch)


def _make_from_present(operation: Operation, branch: Branch, source: Branch) -> None:
    try:
        size = _make_from(operation, branch, source)
    except (
        *(NoSuchBranchData, NotEnoughSpace, SchemaUnreadable, OtherMajorVersion),
        RuleRefused,
    ) as error:
        raise StartRefused(failure_message(error)) from error
    # The data contains the source's roles and databases as last applied there. If an earlier
    # creation of this branch failed or was cancelled, both branches may have counted changes since,
    # so their revisions cannot be compared: apply everything anew.
    made = Operation.objects.filter(branch=branch, action=Action.CREATE_BRANCH)
    is_anew = made.filter(status__in=GIVEN_UP).exists()
    revision = 0 if is_anew else source.applied_catalog_revision
    Branch.objects.filter(id=branch.id).update(applied_catalog_revision=revision, logical_size=size)


def _make_from(operation: Operation, branch: Branch, source: Branch) -> int | None:
    """Create the branch's data. Returns the new branch's logical size in bytes, None if unknown."""
    if branch.init_source == InitSource.SCHEMA_ONLY:
        _import_catalog(source)
        create_schema_only(branch.id, source.id, locale=operation.project.locale)
        return None
    _wake_for_a_long_copy(operation, source)
    _import_catalog(source)
    with copying_masked(branch, source) as masked:
        if not masked:
            masked["begin_history"] = begins_with_copy(operation, branch)
        branch_data.create_from_parent(branch.id, source.id, **masked)
    return source.logical_size


def _replace_data(operation: Operation, branch: Branch, source_id: str, *, kept_as: str) -> None:
    """Replace the branch's data by a copy of the source's, for a restore. The endpoint was
    suspended before, and nothing starts it until the operation has ended."""
    source = Branch.objects.get(id=source_id)
    _wake_for_a_long_copy(operation, source)
    _import_catalog(source)
    compute.stop(branch.id)
    is_wanted = not Branch.objects.get(id=kept_as).hidden
    try:
        with (
            replacing_data(operation, branch, source) as hand_over,
            copying_masked(branch, source) as masked,
        ):
            branch_data.replace(
                branch.id,
                source_id,
                kept_as=kept_as,
                must_keep=is_wanted,
                takes_source=source.is_recovered_past,
                hand_over=hand_over,
                **masked,
            )
        if is_wanted:
            note_history(kept_as)
        if source.is_recovered_past:
            forget_lock(source_id)
    except (NoSuchBranchData, NotEnoughSpace, RuleRefused) as error:
        raise StartRefused(failure_message(error)) from error


def _wake_for_a_long_copy(operation: Operation, parent: Branch) -> None:
    """Start the parent's endpoint before copying the parent, if the copy will take long.

    While an idle parent is copied, clients that want to connect to it have to wait for the end of
    the copy. A running one is copied while it serves its clients, and is suspended again once it is
    idle.
    """
    endpoint = parent.endpoints.filter(deleted_at=None, disabled=False).first()
    if endpoint is None or endpoint.current_state == EndpointState.ACTIVE:
        return
    if not branch_data.takes_long_to_copy(parent.id):
        return
    fields = {"endpoint": endpoint.id}
    try:
        start(operation, endpoint)
    except (StartRefused, StartFailed) as error:
        # No client could start it either, so copy it while it is stopped.
        log.warning("parent not started", extra={**fields, "error": str(error)})
        return
    except (psycopg.Error, LockTimeout) as error:
        # It runs, which is all that the copy needs; `catalog_mending` will apply the catalog.
        log.warning("parent's catalog not applied", extra={**fields, "error": str(error)})
    with locked_project(parent.project_id) as project:
        living = Endpoint.objects.filter(id=endpoint.id, deleted_at=None).first()
        if living is not None:
            now = clock.now()
            enter(project, living, EndpointState.ACTIVE, now=now, operations=[operation])


def _import_catalog(parent: Branch) -> None:
    """Copy what SQL did on the parent to the new branch's rows, before the data is copied."""
    try:
        import_branch_catalog(parent)
    except (psycopg.Error, LockTimeout) as error:
        # The copy contains these changes too, and is read when it is started.
        log.warning("catalog unread", extra={"branch": parent.id, "error": str(error)})


def start_compute(attempt: Attempt) -> None:
    start(attempt.operation, attempt.endpoint)


def suspend_compute(attempt: Attempt) -> None:
    """Stop the compute, unless `if_idle` is set and the endpoint is in use again. A deleted
    endpoint's compute is always stopped: later operations of the chain need that."""
    endpoint, details = attempt.operation.endpoint, attempt.details
    assert endpoint is not None
    assert isinstance(details, SuspendComputeDetails)
    only_if_idle = details.if_idle and endpoint.deleted_at is None
    if only_if_idle and _is_wanted(attempt, endpoint):
        # Also undo what an interrupted attempt did: it may have hidden the socket.
        compute.accept_clients(endpoint.id)
        return
    _held.pop(endpoint.id, None)
    # Do this first: the last reading of the catalog ends every session in the compute.
    compute.disconnect_clients(attempt.branch.id, endpoint.id)
    import_before_stop(attempt.branch)
    if compute.running_endpoint(attempt.branch.id) == endpoint.id:
        count_written(endpoint.id, attempt.branch.id)
    compute.stop(attempt.branch.id)


def apply_config(attempt: Attempt) -> None:
    """Apply new settings or a new size, changed roles and databases, or another branch."""
    endpoint, details = attempt.endpoint, attempt.details
    assert isinstance(details, ApplyConfigDetails)
    left = details.from_branch_id
    if left and compute.running_endpoint(left) == endpoint.id:
        compute.disconnect_clients(left, endpoint.id)
        import_before_stop(Branch.objects.get(id=left))
        # Count now, as a compute may never run on that branch again.
        count_written(endpoint.id, left)
        compute.stop(left)
    run_compute(endpoint, compute.reconfigure)
    try:
        apply_to_compute(attempt.operation, endpoint)
    except NotApplied as error:
        if error.is_final:
            raise StartRefused(failure_message(error)) from error
        raise
    prepare_for_clients(endpoint)


def check_availability(attempt: Attempt) -> None:
    """Check that the branch's data is intact and that the endpoint starts and answers."""
    endpoint, details = attempt.endpoint, attempt.details
    assert isinstance(details, CheckAvailabilityDetails)
    if details.was_silent:
        _end_if_silent(endpoint)
        return
    was_running = compute.running_endpoint(endpoint.branch_id) == endpoint.id
    try:
        # A start would stop a compute that does not answer in time.
        if not was_running:
            run_compute(endpoint, compute.start)
        check_data(socket_dir(endpoint.id))
        import_branch_catalog(endpoint.branch)
    finally:
        if not was_running and not attempt.is_awaited():
            compute.stop(endpoint.branch_id)


def delete_timeline(attempt: Attempt) -> None:
    compute.remove(attempt.branch.id)


def delete_tenant(attempt: Attempt) -> None:
    for branch in Branch.objects.filter(project_id=attempt.operation.project_id):
        compute.remove(branch.id)


def _is_wanted(attempt: Attempt, endpoint: Endpoint) -> bool:
    """Return whether a client has used the endpoint since it was found idle, or wants to. If not,
    the listener socket is hidden, so that no client can connect any more."""
    if attempt.is_awaited() or _was_used(attempt, endpoint):
        _held.pop(endpoint.id, None)
        return True
    if _awaits_pooled_client(attempt.branch.id, endpoint):
        return True
    compute.refuse_new_clients(attempt.branch.id, endpoint.id)
    return _was_used(attempt, endpoint)


def _was_used(attempt: Attempt, endpoint: Endpoint) -> bool:
    noted = endpoint.last_active
    # A note that is later than the operation is a use since then. What the compute reports may be
    # earlier than the operation and yet later than the last note, so it is compared with the note.
    if noted is not None and noted > attempt.operation.created_at:
        return True
    try:
        last = observation.last_activity(endpoint.id, endpoint.heartbeats_since)
    except psycopg.Error:
        return False
    return last is not None and (noted is None or last > noted)


def _awaits_pooled_client(branch_id: str, endpoint: Endpoint) -> bool:
    """Return whether a pooled client is about to use the endpoint: its statement may have reached
    the pooler but not the compute yet. After MAX_HELD times in a row this returns False, so that
    proxies that hang do not keep a compute running forever."""
    if not compute.disconnect_pooled_clients(branch_id, endpoint.id):
        _held[endpoint.id] += 1
        if _held[endpoint.id] <= MAX_HELD:
            return True
    _held.pop(endpoint.id, None)
    return False


def _end_if_silent(endpoint: Endpoint) -> None:
    """Stop the compute if it does not answer. Raises StartRefused if it was stopped: the endpoint
    is then idle."""
    if compute.running_endpoint(endpoint.branch_id) != endpoint.id:
        return
    with step("asking"):
        is_silent = observation.is_silent(endpoint.id)
    if is_silent:
        compute.stop(endpoint.branch_id)
        raise StartRefused(
            "the compute ran without answering, and was stopped; the next connection starts it"
        )
