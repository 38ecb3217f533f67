"""The lock that every transaction which changes a project begins with."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import transaction

from controlplane.events.recording import together
from controlplane.models import Project
from controlplane.models.reading import Reading

# No key update: rows that refer to the project may be written meanwhile.
LOCKED = Reading(
    Project,
    "WHERE t.id = %(project)s FOR NO KEY UPDATE OF t",
    joined=["region", "account"],
)


@contextmanager
def locked_project(project_id: str) -> Iterator[Project]:
    """A transaction that holds the project's row, and writes its events at its end; raises
    Project.DoesNotExist.

    Who also needs branches on disk locks those before (`compute.filesystem.lock_branches`), and
    nobody holds two projects.
    """
    with transaction.atomic(), together():
        project = LOCKED.first(project=project_id)
        if project is None:
            raise Project.DoesNotExist
        yield project
