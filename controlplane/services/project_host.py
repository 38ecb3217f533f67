"""Changes which host a project lives on: the one place that does."""

from controlplane import clock
from controlplane.models import HANDED_OVER, Host, Operation, Project
from controlplane.operations.queue import move_job


def set_host(project: Project, host: Host) -> None:
    """Let the project live on another host of its region from now on. Proxies learn of it by a
    notification (migration 0046), and pass its clients on.

    The caller holds the project's lock, has stopped its computes or knows that they are gone, and
    sees to its data. Jobs that wait move to the new host's queues.
    """
    project.host = host
    project.updated_at = max(clock.now(), project.updated_at)
    project.save(update_fields=["host", "updated_at"])
    waiting = Operation.objects.filter(
        project=project, status__in=HANDED_OVER, dispatched_at__isnull=False
    )
    for operation in waiting:
        move_job(operation, project)
