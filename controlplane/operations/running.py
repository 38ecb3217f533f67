"""Has an endpoint's compute run as the endpoint's rows say."""

import logging
from collections.abc import Callable

import psycopg

from controlplane.compute import compute, observation
from controlplane.compute.branch_data import NoSuchBranchData
from controlplane.compute.compute import ConfigurationRefused, OtherMajorVersion
from controlplane.compute.configuration import ComputeSpec
from controlplane.compute.observation import OtherBranch
from controlplane.compute.pooler_settings import pooler_complaint
from controlplane.compute.postgres_settings import complaint, from_json
from controlplane.compute.steps import step
from controlplane.compute.tree import TreeUntrusted
from controlplane.models import BranchState, Endpoint, Operation, PostgresSettings
from controlplane.operations.catalog import NotApplied, bring_to_catalog
from controlplane.operations.disk import why_stopped
from controlplane.operations.words import words_of
from controlplane.operations.written import count_written

log = logging.getLogger(__name__)


class Refused(Exception):
    """The operation cannot succeed however often it is tried; the message says why."""


def start(operation: Operation, endpoint: Endpoint) -> None:
    """Start the endpoint's compute for the operation, with the branch's roles and databases.

    Raises Refused, process.StartFailed, and psycopg.Error or filesystem.LockTimeout where the
    catalog could not be read or applied: the compute runs then, but the start is to be tried again.
    """
    bring_up(endpoint, compute.start)
    try:
        bring_to_catalog(operation, endpoint)
    except NotApplied as error:
        if not error.is_final and operation.failures_count == 0:
            raise  # what was in the way may have passed by the next attempt
        # One role that Postgres refuses must not keep everyone out. Its row holds the reason, and
        # the branch stays behind its revision until `catalog_mending` has brought it there.
        log.warning("catalog not whole", extra={"endpoint": endpoint.id, "error": str(error)})
    begin_counting(endpoint)
    _hold_to_limit(endpoint)


def bring_up(endpoint: Endpoint, bring_up: Callable[[ComputeSpec], None]) -> None:
    """By `compute.start` or `compute.reconfigure`. Raises Refused, process.StartFailed."""
    if endpoint.branch.current_state != BranchState.READY:
        raise Refused(
            f"the branch {endpoint.branch_id} was not created: retry the operation that was to "
            "create it, or delete the branch"
        )
    if reason := why_stopped(endpoint.branch_id):
        raise Refused(reason)
    try:
        bring_up(compute_spec(endpoint))
    except (ConfigurationRefused, NoSuchBranchData, OtherMajorVersion) as error:
        raise Refused(words_of(error)) from error


def compute_spec(endpoint: Endpoint) -> ComputeSpec:
    return ComputeSpec(
        endpoint_id=endpoint.id,
        branch_id=endpoint.branch_id,
        min_cu=endpoint.autoscaling_limit_min_cu,
        max_cu=endpoint.autoscaling_limit_max_cu,
        pg_settings=_allowed_settings(endpoint),
        pgbouncer_settings=_allowed_pooler_settings(endpoint),
        logical_replication=endpoint.project.replicates_logically,
        read_only=endpoint.branch.is_over_limit,
        blocks_outbound=endpoint.project.blocks_outbound,
        storage_limit=endpoint.project.account.branch_size_limit,
    )


def _allowed_settings(endpoint: Endpoint) -> dict[str, str]:
    """The endpoint's settings, but for those that were stored before a rule that forbids them,
    or before a Postgres that does not know them: they keep no endpoint from starting."""
    stored = endpoint.settings.get("pg_settings", {})
    known = from_json(PostgresSettings.known_in(endpoint.project.region_id) if stored else {})
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
    """Likewise of its pooler, which would not start with them."""
    stored = endpoint.settings.get("pgbouncer_settings", {})
    size = endpoint.autoscaling_limit_max_cu
    return {
        name: value
        for name, value in stored.items()
        if pooler_complaint(name, value, max_cu=size) is None
    }


def begin_counting(endpoint: Endpoint) -> None:
    """Have what is written be counted from here on where the branch's data is new: not what the
    platform wrote to it, nor what was written to its parent."""
    branch = endpoint.branch
    if branch.meter.written_data != observation.data_of(branch.id):
        count_written(endpoint.id, branch.id)


def _hold_to_limit(endpoint: Endpoint) -> None:
    """Measure a branch whose size is limited; since it was last, it may have grown beyond."""
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
        bring_up(endpoint, compute.reconfigure)
