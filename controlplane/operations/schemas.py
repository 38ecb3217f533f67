"""Reads the schemas that requests ask for (`models.SchemaReading`): a job of the worker, as the
computes are on its host.

A compute that runs is read beside its clients. One that sleeps is started for as long as it takes,
under the branch's lock, and no client notices: it is no activity, changes no state and is counted
nowhere. A branch without an endpoint is started the same way, where no proxy finds it.
"""

import logging
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg
from django.db import InterfaceError, OperationalError, connection, transaction

from controlplane import clock
from controlplane.compute import compute
from controlplane.compute.filesystem import LockTimeout, lock_branches
from controlplane.compute.patience import OutOfPatience, patience
from controlplane.compute.schema import SchemaUnreadable, schema_as_sql, schema_as_tables
from controlplane.models import (
    HOPEFUL,
    Branch,
    Endpoint,
    Operation,
    Region,
    SchemaFormat,
    SchemaReading,
)
from controlplane.operations.actions import STARTS
from controlplane.operations.running import Refused, bring_up
from controlplane.operations.words import without_paths, words_of

log = logging.getLogger(__name__)

# Where whoever waits is told that a reading has ended, by its id.
READINGS = "perch_readings"
# Seconds that a reading may wait for other work on the branch, and in all may stand still.
LOCK_BOUND, BOUND = 30.0, 45.0
# What a Postgres says that comes or goes.
PASSING = re.compile("the database system is |terminating connection|closed the connection")
# After this nobody waits for a reading any more.
FORGOTTEN_AFTER = timedelta(minutes=5)


def read_schema(reading_id: uuid.UUID) -> None:
    """Do what the reading asks for, and tell whoever waits; nothing where nobody does any more."""
    reading = (
        SchemaReading.objects.select_related("branch__project__account", "branch__project__region")
        .filter(id=reading_id, finished_at=None)
        .first()
    )
    if reading is None:
        return
    answer = error = ""
    try:
        with patience(BOUND):
            answer = _read(reading)
    except (LockTimeout, OutOfPatience):
        error = "the branch is busy with other work; try again"
    except (OperationalError, InterfaceError):
        raise  # our own database's: the job is run again
    except Exception as failure:
        log.exception("schema not read", extra={"branch": reading.branch_id})
        words = str(failure) if isinstance(failure, Refused) else words_of(failure)
        error = without_paths(f"the schema cannot be read: {words}")
    with transaction.atomic():
        SchemaReading.objects.filter(id=reading.id).update(
            answer=answer, error=error, finished_at=clock.now()
        )
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [READINGS, str(reading.id)])


def forget_readings(region: Region) -> None:
    """Delete those whose request died before it had its answer; any region's worker may."""
    before = clock.now() - FORGOTTEN_AFTER
    SchemaReading.objects.filter(created_at__lt=before).delete()


def _read(reading: SchemaReading) -> str:
    branch = reading.branch
    if running := compute.running_endpoint(branch.id):
        try:
            return _ask(reading, running)
        except (SchemaUnreadable, psycopg.Error) as error:
            if compute.running_endpoint(branch.id) == running and not PASSING.search(str(error)):
                raise
            # It was just being started or stopped, by somebody who holds the branch.
    with lock_branches(branch.id, timeout=LOCK_BOUND), _running(branch) as endpoint_id:
        return _ask(reading, endpoint_id)


def _ask(reading: SchemaReading, endpoint_id: str) -> str:
    if reading.format == SchemaFormat.JSON:
        return schema_as_tables(endpoint_id, reading.database_name)
    return schema_as_sql(endpoint_id, reading.branch_id, reading.database_name)


@contextmanager
def _running(branch: Branch) -> Iterator[str]:
    """The id that the branch's compute runs for meanwhile. The caller holds the branch's lock."""
    if running := compute.running_endpoint(branch.id):
        yield running
        return
    endpoint = Endpoint.objects.filter(branch=branch, deleted_at=None, disabled=False).first()
    runs_for = endpoint or Endpoint(id=compute.reader_of(branch.id))
    runs_for.project, runs_for.branch = branch.project, branch
    try:
        bring_up(runs_for, compute.start)
        yield runs_for.id
    finally:
        if not (endpoint and _is_awaited(endpoint)):
            compute.stop(branch.id)


def _is_awaited(endpoint: Endpoint) -> bool:
    """Whether somebody has come to connect: the start that waits behind us finds it running."""
    return Operation.objects.filter(
        project_id=endpoint.project_id,
        endpoint=endpoint,
        action__in=STARTS,
        status__in=HOPEFUL,
    ).exists()
