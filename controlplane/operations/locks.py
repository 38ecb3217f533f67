"""The lock with which every transaction that changes a project begins."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import transaction

from controlplane.events.recording import together
from controlplane.models import Project
from controlplane.models.reading import Reading

# NO KEY UPDATE lets others write rows that refer to the project meanwhile.
LOCKED = Reading(
    Project,
    "WHERE t.id = %(project)s FOR NO KEY UPDATE OF t",
    joined=["region", "account"],
)


@contextmanager
def locked_project(project_id: str) -> Iterator[Project]:
    """Open a transaction that holds the lock of the project's row and writes its events at its end.
    Raises Project.DoesNotExist.

    A caller that also needs branches on disk locks those first
    (`compute.filesystem.lock_branches`). No caller locks two projects.
    """
    with transaction.atomic(), together():
        project = LOCKED.first(project=project_id)
        if project is None:
            raise Project.DoesNotExist
        yield project
