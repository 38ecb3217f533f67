"""Reads what requests ask for (`models.SchemaReading`): schemas, the commits around a past moment,
the logs of branches, and the sessions in their computes. This is a job of the worker, because the
computes and their history are on its host.

A running compute is read while it serves its clients. A branch whose compute does not run is
started for the time of the reading, under the branch's lock, and clients do not notice: it is no
activity, changes no state and counts as no usage. A branch without an endpoint is started under an
id where no proxy finds it. For a past moment, Postgres runs on a recovered copy of the branch,
which is removed afterwards.
"""

import json
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import psycopg
from django.db import InterfaceError, OperationalError, connection, transaction

from controlplane import clock
from controlplane.compute import compute
from controlplane.compute.host.filesystem import LockTimeout, lock_branches
from controlplane.compute.host.log_lines import SOURCES, last_lines, log_file, without_passwords
from controlplane.compute.host.logs import flush_log
from controlplane.compute.host.patience import OutOfPatience, patience
from controlplane.compute.observation import read_sessions
from controlplane.compute.schemas.schema import (
    SchemaUnreadable,
    is_connection_lost,
    schema_as_sql,
    schema_as_tables,
)
from controlplane.history.local.moments import NoSuchMoment
from controlplane.history.operations import read_past
from controlplane.models import (
    MAY_SUCCEED,
    Branch,
    Endpoint,
    Host,
    Operation,
    SchemaFormat,
    SchemaReading,
)
from controlplane.operations.actions.computes import StartRefused, run_compute
from controlplane.operations.actions.table import STARTS
from controlplane.operations.actions.words import failure_message, without_paths

log = logging.getLogger(__name__)

# The channel that notifies the waiting request that a reading has ended; the payload is its id.
READINGS = "perch_readings"
# Seconds that a reading may wait for other work on the branch, and seconds without progress after
# which the whole reading is given up.
LOCK_TIMEOUT, STALL_TIMEOUT = 30.0, 45.0
MAX_LOG_LINES = 1000
# After this time no request waits for a reading any more.
READING_RETENTION = timedelta(minutes=5)


def read_schema(reading_id: uuid.UUID) -> None:
    """Do the reading and notify the request that waits for it. Does nothing if the reading has
    ended or its request has given up."""
    reading = (
        SchemaReading.objects.select_related("branch__project__account", "branch__project__host")
        .filter(id=reading_id, finished_at=None)
        .first()
    )
    if reading is None:
        return
    answer = error = ""
    try:
        with patience(STALL_TIMEOUT):
            answer = _answer(reading)
    except NoSuchMoment as absent:
        error = str(absent)
    except (LockTimeout, OutOfPatience):
        error = "the branch is busy with other work; try again"
    except (OperationalError, InterfaceError):
        raise  # the metadata database failed: the queue runs the job again
    except Exception as failure:
        log.exception("reading failed", extra={"branch": reading.branch_id})
        words = str(failure) if isinstance(failure, StartRefused) else failure_message(failure)
        error = without_paths(f"the {reading.subject} cannot be read: {words}")
    with transaction.atomic():
        SchemaReading.objects.filter(id=reading.id).update(
            answer=answer, error=error, finished_at=clock.now()
        )
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [READINGS, str(reading.id)])


def forget_readings(host: Host) -> None:
    """Delete readings whose request died before it got the answer; any worker may."""
    before = clock.now() - READING_RETENTION
    SchemaReading.objects.filter(created_at__lt=before).delete()


def _answer(reading: SchemaReading) -> str:
    if reading.format == SchemaFormat.LOGS:
        return _read_logs(reading)
    if reading.format == SchemaFormat.SESSIONS:
        endpoint_id = compute.running_endpoint(reading.branch_id)
        return json.dumps(read_sessions(endpoint_id) if endpoint_id else [], default=str)
    if reading.is_of_the_past:
        return read_past(reading, partial(_ask, reading))
    return _read(reading)


def _read_logs(reading: SchemaReading) -> str:
    """The last lines, for all who may read the endpoint, as JSON."""
    sources = [reading.database_name] if reading.database_name else SOURCES
    for source in sources:
        flush_log(log_file(reading.branch_id, source))
    lines = without_passwords(last_lines(reading.branch_id, sources=sources, most=MAX_LOG_LINES))
    shown = [{**line.as_json(), "message": without_paths(line.message)} for line in lines]
    return json.dumps(shown)


def _read(reading: SchemaReading) -> str:
    branch = reading.branch
    if running := compute.running_endpoint(branch.id):
        try:
            return _ask(reading, running)
        except (SchemaUnreadable, psycopg.Error) as error:
            if compute.running_endpoint(branch.id) == running and not is_connection_lost(
                str(error)
            ):
                raise
            # The holder of the branch's lock was starting or stopping it.
    with lock_branches(branch.id, timeout=LOCK_TIMEOUT), _running(branch) as endpoint_id:
        return _ask(reading, endpoint_id)


def _ask(reading: SchemaReading, endpoint_id: str, of: str = "") -> str:
    if reading.format == SchemaFormat.JSON:
        return schema_as_tables(endpoint_id, reading.database_name)
    return schema_as_sql(endpoint_id, of or reading.branch_id, reading.database_name)


@contextmanager
def _running(branch: Branch) -> Iterator[str]:
    """Keep the branch's compute running, and give the id that it runs for. The caller holds the
    branch's lock."""
    if running := compute.running_endpoint(branch.id):
        yield running
        return
    endpoint = Endpoint.objects.filter(branch=branch, deleted_at=None, disabled=False).first()
    runs_for = endpoint or Endpoint(id=compute.internal_id(branch.id))
    runs_for.project, runs_for.branch = branch.project, branch
    try:
        run_compute(runs_for, compute.start)
        yield runs_for.id
    finally:
        if not (endpoint and _is_awaited(endpoint)):
            compute.stop(branch.id)


def _is_awaited(endpoint: Endpoint) -> bool:
    """Return whether a start of the endpoint waits for the branch, because a client wants to
    connect: that start shall find the compute running."""
    return Operation.objects.filter(
        project_id=endpoint.project_id,
        endpoint=endpoint,
        action__in=STARTS,
        status__in=MAY_SUCCEED,
    ).exists()
