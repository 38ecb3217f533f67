"""Which host a project lives on: the one place that changes it.

A worker acts only for the projects of its host (`own_host`), and proxies hear of the change in the
same transaction (migration 0030). So this one row decides which host owns the project's branches.
"""

import threading

from django.db import transaction

from controlplane import clock
from controlplane.events.changes import project_updated
from controlplane.events.differences import differences
from controlplane.events.recording import record
from controlplane.models import HANDED_OVER, HistoryChain, Host, Operation, Project
from controlplane.operations.queue.jobs import move_job

# Set when a project has been given to another host by this process.
has_moved = threading.Event()


class HostNotReady(Exception):
    """The host cannot own the project; the message says why."""


def give_to_host(project: Project, host_id: str, *, served_by: str, by: Operation) -> None:
    """Make the host the one that the project lives on. The caller holds the project's lock, no
    process works on the project's branches, and the state directory with the identity `served_by`
    has all of their data durably. Raises HostNotReady if another one serves the host."""
    host = Host.objects.select_for_update().filter(id=host_id).first()
    if host is None or host.region_id != project.region_id or host.state_id != served_by:
        raise HostNotReady(f'the host "{host_id}" has lost the data that was moved there')
    changes = differences({"host_id": project.host_id}, {"host_id": host.id})
    project.host, project.updated_at = host, clock.now()
    project.save(update_fields=["host", "updated_at"])
    # The host has no copies in the store yet: its rounds make them.
    HistoryChain.objects.filter(branch__project=project).update(stored_at=None)
    if changes:
        record(project_updated(project, changes, [by]))
    transaction.on_commit(has_moved.set)


def set_host(project: Project, host: Host) -> None:
    """Let the project of a lost host live on another host of its region from now on.

    The caller holds the project's lock, knows that its computes are gone, and sees to its data.
    Jobs that wait move to the new host's queues.
    """
    project.host = host
    project.updated_at = max(clock.now(), project.updated_at)
    project.save(update_fields=["host", "updated_at"])
    waiting = Operation.objects.filter(
        project=project, status__in=HANDED_OVER, dispatched_at__isnull=False
    )
    for operation in waiting:
        move_job(operation, project)
