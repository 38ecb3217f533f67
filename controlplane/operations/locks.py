"""The lock with which every transaction that changes a project begins.

Threads of one process wait for it in the process. If they waited in the database, each would hold a
connection, and one busy project could take all of a worker's few.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from django.conf import settings
from django.db import OperationalError, transaction

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


# By the project's id. An RLock, as a thread that holds the lock may ask for it again.
_turns: "WeakValueDictionary[str, threading.RLock]" = WeakValueDictionary()
_of_turns = threading.Lock()


@contextmanager
def locked_project(project_id: str) -> Iterator[Project]:
    """Open a transaction that holds the lock of the project's row and writes its events at its end.
    Raises Project.DoesNotExist, and OperationalError if the lock is not free for as long as a
    statement may take.

    A caller that also needs branches on disk locks those first
    (`compute.filesystem.lock_branches`). No caller locks two projects.
    """
    with _turn(project_id), transaction.atomic(), together():
        # If the project was given to another host while this waited for the lock, Postgres finds no
        # row: it compares the new row with the former host. The second read is not to wait.
        project = LOCKED.first(project=project_id) or LOCKED.first(project=project_id)
        if project is None:
            raise Project.DoesNotExist
        yield project


@contextmanager
def _turn(project_id: str) -> Iterator[None]:
    with _of_turns:
        turn = _turns.setdefault(project_id, threading.RLock())
    if not turn.acquire(blocking=False):
        release_connection()
        if not turn.acquire(timeout=settings.DATABASE_TIMEOUT or -1):
            raise OperationalError("other threads hold the project's lock")
    try:
        yield
    finally:
        turn.release()
