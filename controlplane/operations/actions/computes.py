"""Runs an endpoint's compute as the endpoint's rows specify."""

import logging
from collections.abc import Callable

import psycopg
from django.db import connection

from controlplane.compute import compute, observation
from controlplane.compute.catalog.system_views import close_views
from controlplane.compute.compute import ConfigurationRefused, OtherMajorVersion
from controlplane.compute.data.branch_data import NoSuchBranchData
from controlplane.compute.host.steps import step
from controlplane.compute.host.tree import TreeUntrusted
from controlplane.compute.observation import OtherBranch
from controlplane.compute.processes.session import socket_dir
from controlplane.compute.settings.configuration import ComputeSpec
from controlplane.compute.settings.pooler_settings import pooler_complaint
from controlplane.compute.settings.postgres_settings import complaint, from_json
from controlplane.features import features
from controlplane.models import BranchState, Endpoint, Operation, PostgresSettings
from controlplane.operations.actions.words import failure_message
from controlplane.operations.catalog.applying import NotApplied, apply_to_compute
from controlplane.operations.disk import start_refusal

log = logging.getLogger(__name__)


def count_written(endpoint_id: str, branch_id: str) -> None:
    """Count what was written to the branch that the endpoint's compute runs on. If the compute does
    not answer, a later count includes it, perhaps after the compute's next start."""
    try:
        note_written(branch_id, observation.written(endpoint_id, branch_id))
    except (psycopg.Error, observation.OtherBranch) as error:
        log.info("written bytes unknown", extra={"endpoint": endpoint_id, "error": str(error)})


def note_written(branch_id: str, written: observation.Written) -> None:
    """Count in one statement, so that a crash neither loses bytes nor counts them twice."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT perch_note_written(%s, %s, %s)", [branch_id, written.data, written.position]
        )


# The rows that a start of an endpoint reads besides its own.
START_RELATIONS = ("branch__project__account", "branch__meter", "project__host", "project__account")


class StartRefused(Exception):
    """The operation cannot succeed however often it is retried; the message says why."""


def start(operation: Operation, endpoint: Endpoint) -> None:
    """Start the endpoint's compute for the operation, with the branch's roles and databases.

    Raises StartRefused and process.StartFailed. Raises psycopg.Error or filesystem.LockTimeout if
    the catalog could not be read or applied: the compute then runs, but the start has to be
    retried."""
    run_compute(endpoint, compute.start)
    for feature in features():
        feature.on_start(endpoint)
    try:
        apply_to_compute(operation, endpoint)
    except NotApplied as error:
        if not error.is_final and operation.failures_count == 0:
            raise  # the obstacle may be gone at the next attempt
        # A role that Postgres refuses must not keep all clients out. Its row holds the reason, and
        # the branch stays behind its revision until `catalog_mending` has applied it.
        log.warning("catalog incomplete", extra={"endpoint": endpoint.id, "error": str(error)})
    prepare_for_clients(endpoint)
    _hold_to_limit(endpoint)


def prepare_for_clients(endpoint: Endpoint) -> None:
    """Do what is due when the endpoint's compute runs with its settings and its catalog. The caller
    holds the branch's lock."""
    for feature in features():
        feature.before_clients(endpoint)
    begin_counting(endpoint)


def run_compute(endpoint: Endpoint, bring_up: Callable[[ComputeSpec], None]) -> None:
    """Run the compute, by calling `compute.start` or `compute.reconfigure`. Raises StartRefused,
    process.StartFailed. Raises psycopg.Error if its system views cannot be made read-only: the
    compute then runs, but this has to be retried."""
    if endpoint.branch.current_state != BranchState.READY:
        raise StartRefused(
            f"the branch {endpoint.branch_id} was not created: retry the operation that was to "
            "create it, or delete the branch"
        )
    if reason := start_refusal(endpoint.branch_id):
        raise StartRefused(reason)
    try:
        bring_up(compute_spec(endpoint))
    except (ConfigurationRefused, NoSuchBranchData, OtherMajorVersion) as error:
        raise StartRefused(failure_message(error)) from error
    close_views(endpoint.branch_id, socket_dir(endpoint.id))


def compute_spec(endpoint: Endpoint) -> ComputeSpec:
    return ComputeSpec(
        endpoint_id=endpoint.id,
        branch_id=endpoint.branch_id,
        min_cu=endpoint.autoscaling_limit_min_cu,
        max_cu=endpoint.autoscaling_limit_max_cu,
        pg_settings=_allowed_settings(endpoint),
        pgbouncer_settings=_allowed_pooler_settings(endpoint),
        logical_replication=endpoint.project.replicates_logically,
        read_only=endpoint.branch.is_over_limit or endpoint.branch.is_time_travel,
        blocks_outbound=endpoint.project.blocks_outbound,
        storage_limit=endpoint.project.account.branch_size_limit,
    )


def _allowed_settings(endpoint: Endpoint) -> dict[str, str]:
    """Return the endpoint's Postgres settings that are valid now. A stored setting may be older
    than the rule that forbids it, or unknown to this Postgres; it must not prevent the start."""
    stored = endpoint.settings.get("pg_settings", {})
    known = from_json(PostgresSettings.known_to(endpoint.project) if stored else {})
    size = endpoint.autoscaling_limit_max_cu
    storage = endpoint.project.account.branch_size_limit
    allowed = {}
    for name, value in stored.items():
        if words := complaint(name, value, max_cu=size, storage=storage, known=known):
            fields = {"endpoint": endpoint.id, "setting": name, "error": words}
            log.warning("setting left out", extra=fields)
        else:
            allowed[name] = value
    return allowed


def _allowed_pooler_settings(endpoint: Endpoint) -> dict[str, str]:
    """Do the same for the settings of the pooler, which would not start with invalid ones."""
    stored = endpoint.settings.get("pgbouncer_settings", {})
    size = endpoint.autoscaling_limit_max_cu
    return {
        name: value
        for name, value in stored.items()
        if pooler_complaint(name, value, max_cu=size) is None
    }


def begin_counting(endpoint: Endpoint) -> None:
    """Start counting written bytes from now on, if the branch's data is new. What the platform
    wrote to that data, or what was written to its parent, does not count."""
    branch = endpoint.branch
    if branch.meter.written_data != observation.data_of(branch.id):
        count_written(endpoint.id, branch.id)


def _hold_to_limit(endpoint: Endpoint) -> None:
    """Measure the branch, if its size is limited: it may have exceeded the limit since the last
    measurement. If it is now on the other side of the limit, reconfigure its compute."""
    branch = endpoint.branch
    if branch.project.account.branch_size_limit is None:
        return
    try:
        with step("measuring"):
            found = observation.measure(endpoint.id, branch.id)
    except (psycopg.Error, OtherBranch, TreeUntrusted, OSError) as error:
        log.info("size unknown", extra={"endpoint": endpoint.id, "error": str(error)})
        return
    was_over = branch.is_over_limit
    branch.logical_size, branch.auxiliary_size = found.logical_size, found.auxiliary_size
    branch.save(update_fields=["logical_size", "auxiliary_size"])
    if branch.is_over_limit != was_over:
        run_compute(endpoint, compute.reconfigure)
