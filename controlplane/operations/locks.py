"""The lock with which every transaction that changes a project begins, and what keeps one project's
part of a round `apart` from all others'.

Threads of one process wait for it in the process. If they waited in the database, each would hold a
connection, and one busy project could take all of a worker's few.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from weakref import WeakValueDictionary

import psycopg
from django.conf import settings
from django.db import InterfaceError, OperationalError, connection, transaction

from controlplane.compute.host.filesystem import LockTimeout
from controlplane.database.base import release_connection
from controlplane.events.recording import together
from controlplane.models import Project
from controlplane.models.reading import Reading

# NO KEY UPDATE lets others write rows that refer to the project meanwhile.
LOCKED = Reading(
    Project,
    "WHERE t.id = %(project)s FOR NO KEY UPDATE OF t",
    joined=["host", "region", "account"],
)


log = logging.getLogger(__name__)

# Seconds that a round over many projects waits for a lock of one of them.
ROUND_LOCK_TIMEOUT = 0.5
# What rounds have left for so many seconds is a problem for the operator; what none has left for
# the second number of seconds is forgotten.
LEFT_TOO_LONG, LEFT_LATELY = 300.0, 150.0

# The bound of `left_if_busy` in seconds; None outside of it.
_within: ContextVar[float | None] = ContextVar("within", default=None)
# The errors of which the present round has kept others apart; None outside of a round.
_noted: ContextVar[list[Exception] | None] = ContextVar("noted", default=None)
# By the id: when the first and the last round left it, by the monotonic clock.
_left: dict[str, tuple[float, float]] = {}

# By the project's id. An RLock, as a thread that holds the lock may ask for it again.
_turns: "WeakValueDictionary[str, threading.RLock]" = WeakValueDictionary()
_of_turns = threading.Lock()


@contextmanager
def locked_project(project_id: str) -> Iterator[Project]:
    """Open a transaction that holds the lock of the project's row and writes its events at its end.
    Raises Project.DoesNotExist, and OperationalError if the lock is not free for as long as a
    statement may take, or in a round for as long as `left_if_busy` says.

    A caller that also needs branches on disk locks those first
    (`compute.host.filesystem.lock_branches`). No caller locks two projects.
    """
    with _turn(project_id), transaction.atomic(), together():
        if (timeout := _within.get()) is not None:
            with connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL lock_timeout = {round(timeout * 1000)}")
        # If the project was given to another host while this waited for the lock, Postgres finds no
        # row: it compares the new row with the former host. The second read is not to wait.
        project = LOCKED.first(project=project_id) or LOCKED.first(project=project_id)
        if project is None:
            raise Project.DoesNotExist
        yield project


class EndsRound(Exception):
    """No fault of the one that a round is at: the others would fail too."""


@contextmanager
def apart(part_id: str) -> Iterator[None]:
    """Do in the block what a round does for one of many: the project, branch or endpoint with this
    id. All rounds over several of them use this, so that one never holds up the others, as
    `left_if_busy` says, and never keeps them from their turn by an error:

    with apart(project_id), locked_project(project_id) as project: …

    An error is logged, and becomes the round's problem (`noting_failures`). Raises what is not the
    fault of this one: OperationalError, InterfaceError, EndsRound; and LockTimeout, as branches on
    the disk may be busy for long.
    """
    try:
        with left_if_busy(part_id):
            yield
    except (OperationalError, InterfaceError, EndsRound, LockTimeout):
        raise
    except Project.DoesNotExist:
        pass  # its row was removed meanwhile
    except Exception as error:
        log.exception("left out of the round", extra={"left": part_id})
        if (noted := _noted.get()) is not None:
            noted.append(error)


@contextmanager
def left_if_busy(busy_id: str) -> Iterator[None]:
    """Leave the block, and so the project or branch with this id for the next round, if the
    project's lock, or another that the block waits for while it holds that, is not free within
    ROUND_LOCK_TIMEOUT."""
    token = _within.set(ROUND_LOCK_TIMEOUT)
    try:
        yield
    except OperationalError as error:
        if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
            raise
        now = time.monotonic()
        _left[busy_id] = _left.get(busy_id, (now, now))[0], now
        log.info("project busy, left for the next round", extra={"left": busy_id})
    else:
        _left.pop(busy_id, None)
    finally:
        _within.reset(token)


@contextmanager
def noting_failures() -> Iterator[list[Exception]]:
    """Collect the errors that `apart` keeps from ending the round in the block."""
    failures: list[Exception] = []
    token = _noted.set(failures)
    try:
        yield failures
    finally:
        _noted.reset(token)


def left_for_long() -> int:
    """Return how many projects and branches rounds have left for too long."""
    now = time.monotonic()
    for busy_id, (_, last) in list(_left.items()):
        if now - last > LEFT_LATELY:
            _left.pop(busy_id, None)
    return sum(now - first > LEFT_TOO_LONG for first, _ in list(_left.values()))


@contextmanager
def _turn(project_id: str) -> Iterator[None]:
    with _of_turns:
        turn = _turns.setdefault(project_id, threading.RLock())
    if not turn.acquire(blocking=False):
        release_connection()
        timeout = _within.get()
        if not turn.acquire(timeout=timeout or settings.DATABASE_TIMEOUT or -1):
            cause = psycopg.errors.LockNotAvailable() if timeout else None
            raise OperationalError("other threads hold the project's lock") from cause
    try:
        yield
    finally:
        turn.release()
