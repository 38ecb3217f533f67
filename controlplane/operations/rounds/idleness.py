"""Suspends endpoints that are idle (specification, section 2.1: activity), has computes checked
that run but do not answer, and ends the poolers that have no client."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TypeVar

import psycopg
from django.conf import settings
from django.db.models import Exists, OuterRef, Q, QuerySet

from controlplane import clock
from controlplane.actors import CHECK, IDLENESS, acting_as
from controlplane.compute import compute, observation
from controlplane.compute.host.filesystem import LockTimeout, lock_branches, pooler_lock
from controlplane.compute.pooler import client_counts, has_pooler, stop_unused
from controlplane.compute.processes.session import socket_dir
from controlplane.events.changes import endpoint_requested
from controlplane.events.recording import record
from controlplane.events.types import EventType
from controlplane.metrics import figures
from controlplane.models import UNFINISHED, Action, Endpoint, EndpointState, Host, Lane, Operation
from controlplane.operations.catalog.importing import import_catalog
from controlplane.operations.details import CheckAvailabilityDetails, SuspendComputeDetails
from controlplane.operations.engine.scheduling import Step, schedule
from controlplane.operations.locks import apart, left_if_busy, locked_project
from controlplane.operations.rounds.looks import look_at_each
from controlplane.usage import sampling
from controlplane.usage.sampling import Sample, look_and_sample

log = logging.getLogger(__name__)

# After this many unanswered polls in a row a compute is considered hung. Polls after the first
# unanswered one follow immediately, so this takes at most 30 seconds, including the time between
# polls and the wait for each answer.
MAX_SILENT_LOOKS = 3

Seen = TypeVar("Seen")

# How many of the last polls of each endpoint's compute were unanswered. Polls of one endpoint never
# run at the same time.
_silent_looks: Counter[str] = Counter()


def counting_silence(look: Callable[[str], Seen]) -> Callable[[str], Seen]:
    """Wrap `look`, which takes an endpoint's id, so that unanswered calls are counted."""

    def listen(endpoint_id: str) -> Seen:
        try:
            seen = look(endpoint_id)
        except psycopg.Error as error:
            if observation.is_no_answer(error):
                _silent_looks[endpoint_id] += 1
            else:
                del _silent_looks[endpoint_id]
            raise
        del _silent_looks[endpoint_id]
        return seen

    return listen


def is_silent(endpoint_id: str) -> bool:
    """Return whether the last poll of the endpoint's compute was unanswered; if so, the next is due
    immediately."""
    return endpoint_id in _silent_looks


def check_silent(endpoints: Iterable[Endpoint]) -> None:
    """Schedule a check for each of the active endpoints whose compute has been silent too long.

    The counts of all other endpoints are dropped, because those are no longer active.
    """
    present = {endpoint.id: endpoint for endpoint in endpoints}
    for endpoint_id, count in list(_silent_looks.items()):
        if endpoint_id not in present:
            del _silent_looks[endpoint_id]
        elif count >= MAX_SILENT_LOOKS:
            del _silent_looks[endpoint_id]
            log.warning("compute silent", extra={"endpoint": endpoint_id, "looks": count})
            _check(present[endpoint_id])


def _check(endpoint: Endpoint) -> None:
    project_id = endpoint.project_id
    with apart(project_id), acting_as(CHECK), locked_project(project_id) as project:
        # An operation may have been scheduled meanwhile. Any operation deals with the compute.
        if Operation.objects.filter(endpoint=endpoint, status__in=UNFINISHED).exists():
            return
        current = Endpoint.objects.select_related("branch").filter(
            id=endpoint.id, deleted_at=None, current_state=EndpointState.ACTIVE
        )
        for found in current:
            details = CheckAvailabilityDetails(was_silent=True)
            action = Action.CHECK_AVAILABILITY
            schedule(project, [Step(action, branch=found.branch, endpoint=found, details=details)])


MAX_LOOK_INTERVAL = 10.0  # seconds
# Seconds for all statements of a poll, and for those of a reading of the catalog.
LOOK_TIME, READING_TIME = 10.0, 30.0

# When this worker last polled each endpoint's compute. A poll costs the compute a connection.
_looked_at: dict[str, datetime] = {}


def suspend_idle_endpoints(host: Host) -> None:
    """Poll the active endpoints' computes for activity, and suspend those without any. Once a
    minute, a poll also takes a sample for the endpoint's metrics.

    Updates `last_active`. An endpoint is polled three times per timeout, and at least every
    MAX_LOOK_INTERVAL seconds.
    """
    now = clock.now()
    # This runs twice a second for all active endpoints, so it reads only these columns. All other
    # columns are read only for the few endpoints that are due.
    running = _active_endpoints(host).filter(id__in=compute.possibly_running())
    timeouts = dict(running.values_list("id", "suspend_timeout_seconds"))
    for gone in _looked_at.keys() - timeouts.keys():
        del _looked_at[gone]
        observation.forget(gone)
    sampling.forget_inactive(timeouts)
    ids = [endpoint_id for endpoint_id in timeouts if _is_due(endpoint_id, timeouts, now)]
    if not ids:
        return
    _looked_at.update((endpoint_id, now) for endpoint_id in ids)
    due = list(Endpoint.objects.select_related("branch", "project").filter(id__in=ids))
    marks = {endpoint.id: endpoint.branch.catalog_mark for endpoint in due}
    sampled = sampling.to_sample(due, now)
    since = {endpoint.id: endpoint.heartbeats_since for endpoint in due}

    def look(endpoint_id: str) -> tuple[observation.Look, Sample | None]:
        if branch_id := sampled.get(endpoint_id):
            return look_and_sample(endpoint_id, branch_id, since[endpoint_id])
        return observation.look(endpoint_id, since[endpoint_id]), None

    changed, samples = [], []
    for endpoint, (seen, sample) in look_at_each(
        due, counting_silence(look), at="activity", timeout=LOOK_TIME
    ):
        if sample is not None:
            samples.append((endpoint, sample))
        if seen.catalog_mark != marks[endpoint.id]:
            changed.append(endpoint)
        with apart(endpoint.id):
            _suspend_if_idle(endpoint, seen.last_activity)
            if seen.release != endpoint.pg_release:
                Endpoint.objects.filter(id=endpoint.id).update(pg_release=seen.release)
    of_project = {endpoint.id: endpoint.project_id for endpoint in changed}

    def read(endpoint_id: str) -> None:
        with left_if_busy(of_project[endpoint_id]):
            import_catalog(endpoint_id)

    for _ in look_at_each(changed, read, at="catalog", timeout=READING_TIME):
        pass
    check_silent(due)
    sampling.note(samples, now)


def _is_due(endpoint_id: str, timeouts: Mapping[str, int], now: datetime) -> bool:
    if is_silent(endpoint_id):
        return True
    timeout = timeout_of(timeouts[endpoint_id])
    between = min(timeout / 3, MAX_LOOK_INTERVAL) if timeout > 0 else MAX_LOOK_INTERVAL
    looked_at = _looked_at.get(endpoint_id)
    return looked_at is None or now - looked_at >= timedelta(seconds=between)


def timeout_of(suspend_timeout_seconds: int) -> int:
    """Return the timeout in seconds; -1 means never."""
    return suspend_timeout_seconds or int(settings.DEFAULT_SUSPEND_TIMEOUT)


def _suspend_if_idle(endpoint: Endpoint, activity: datetime | None) -> None:
    """Store the time of the last activity, and suspend the endpoint if its timeout has passed."""
    timeout = timeout_of(endpoint.suspend_timeout_seconds)
    last = max(filter(None, (activity, endpoint.last_active, endpoint.started_at)), default=None)
    if last is None:
        return
    if endpoint.last_active is None or last > endpoint.last_active:
        Endpoint.objects.filter(id=endpoint.id).update(last_active=last)
    if timeout > 0 and clock.now() - last >= timedelta(seconds=timeout):
        _suspend(endpoint, last)


def _suspend(endpoint: Endpoint, last: datetime) -> None:
    project_id = endpoint.project_id
    with apart(project_id), acting_as(IDLENESS), locked_project(project_id) as project:
        current = (
            _active_endpoints(project.host).select_related("branch").filter(id=endpoint.id).first()
        )
        # The proxy records connections as they come, so there may be a new one.
        if current is None or (current.last_active and current.last_active > last):
            return
        details = SuspendComputeDetails(if_idle=True)
        step = Step(
            Action.SUSPEND_COMPUTE, branch=current.branch, endpoint=current, details=details
        )
        operations = schedule(project, [step], lane=Lane.UPKEEP)
        kind = EventType.ENDPOINT_SUSPEND_REQUESTED
        record(endpoint_requested(kind, project, current, operations))


def _active_endpoints(host: Host) -> QuerySet[Endpoint]:
    # Operations on the endpoint's branch count too: a suspend that has to wait for a long copy of
    # the branch would keep clients out for as long.
    unfinished = Operation.objects.filter(
        Q(endpoint=OuterRef("id")) | Q(resources__contains=[OuterRef("branch_id")]),
        project=OuterRef("project"),
        status__in=UNFINISHED,
    )
    return Endpoint.objects.filter(
        ~Exists(unfinished),
        host=host,
        deleted_at=None,
        current_state=EndpointState.ACTIVE,
    )


# Seconds that a pooler keeps running without a client, so that a client that makes many short
# connections does not wait for a pooler's start each time.
UNUSED_TIMEOUT = 10.0

# For each endpoint, since when its pooler has been seen without a client (monotonic clock).
_unused_since: dict[str, float] = {}


def end_unused_poolers(host: Host) -> None:
    """Stop the poolers that no client has used for a while. Clients that a proxy has parked are not
    connected to their pooler, so they do not count."""
    now, clients = time.monotonic(), client_counts()
    poolers = {
        endpoint_id: place
        for endpoint_id in compute.endpoints_with_sockets()
        if has_pooler(place := socket_dir(endpoint_id))
    }
    figures.POOLERS.set(len(poolers))
    figures.POOLER_CLIENTS.set(clients.total())
    unused = {endpoint_id for endpoint_id, place in poolers.items() if not clients[place]}
    for used in _unused_since.keys() - unused:
        del _unused_since[used]
    for endpoint_id in unused:
        _unused_since.setdefault(endpoint_id, now)
    due = [one for one, since in _unused_since.items() if now - since >= UNUSED_TIMEOUT]
    if not due:
        return
    active = Endpoint.objects.filter(
        host=host, id__in=due, deleted_at=None, current_state=EndpointState.ACTIVE
    )
    for endpoint_id, branch_id in active.values_list("id", "branch_id"):
        try:
            # The compute's directories are untrusted: an error in one must not affect the others.
            with (
                apart(endpoint_id),
                lock_branches(branch_id, pooler_lock(branch_id), timeout=0),
            ):
                stop_unused(branch_id, socket_dir(endpoint_id))
        except LockTimeout:
            continue  # an operation works on the branch; the next round looks again
        del _unused_since[endpoint_id]
