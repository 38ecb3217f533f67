"""Hosts for their operators: which get new projects, and the removal of one."""

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Count, Q, QuerySet

from controlplane.models import UNFINISHED, EndpointState, Host, Lane, Operation, Project
from controlplane.operations.rounds.retention import forget_projects
from controlplane.services.errors import Conflict, NotFound


def counted(hosts: "QuerySet[Host]") -> Any:
    """Add the number of each host's projects (`living`), and of their active endpoints
    (`active`)."""
    exists = Q(projects__deleted_at=None)
    active = Q(
        projects__endpoints__deleted_at=None,
        projects__endpoints__current_state=EndpointState.ACTIVE,
    )
    return hosts.annotate(
        living=Count("projects", filter=exists, distinct=True),
        active=Count("projects__endpoints", filter=exists & active, distinct=True),
    )


def find_host(name: str) -> Any:
    """The host with its counts. Raises NotFound."""
    host = counted(Host.objects.filter(id=name)).first()
    if host is None:
        known = ", ".join(Host.objects.order_by("id").values_list("id", flat=True))
        raise NotFound(f'unknown host "{name}"; use one of: {known or "none"}')
    return host


def drain_host(name: str, *, draining: bool) -> Any:
    """Place no new projects on the host, or again. Its projects stay (`moving.empty_host` moves
    them). Returns the host with its counts. Raises NotFound."""
    host = find_host(name)
    Host.objects.filter(id=host.id).update(draining=draining)
    host.draining = draining
    return host


def remaining_text(hosts: Sequence[Any]) -> str:
    """What keeps the hosts from being removed, in words, or "nothing". `hosts` have their
    counts."""
    unfinished = Operation.objects.filter(project__host__in=hosts, status__in=UNFINISHED).count()
    parts = [
        (sum(host.living for host in hosts), "project"),
        (sum(host.active for host in hosts), "active endpoint"),
        (unfinished, "unfinished operation"),
    ]
    words = [f"{count} {what}{'s' * (count != 1)}" for count, what in parts if count]
    return ", ".join(words) or "nothing"


def refuse_running(host: Host) -> None:
    """Raise Conflict if the host's worker is alive."""
    if not host.is_away:
        raise Conflict(f"the worker of {host.id} still runs; stop it first")


def remove_host(name: str, *, force: bool = False) -> None:
    """Delete the host, the rows of all its projects (deleted ones too), and its jobs. Raises
    NotFound, and Conflict if its worker is alive, or if it is not empty and this is not forced."""
    host = find_host(name)
    refuse_running(host)
    left = remaining_text([host])
    if left != "nothing" and not force:
        raise Conflict(
            f"the host {host.id} is not empty: {left}. Delete the projects while its worker runs; "
            f"if its machine is lost, `{settings.PROGRAM} hosts remove --force` removes them"
        )
    queues = [host.queue(lane) for lane in Lane]
    with transaction.atomic():
        forget_projects(list(Project.objects.filter(host=host).values_list("id", flat=True)))
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM procrastinate_jobs WHERE queue_name = ANY(%s)", [queues])
        host.delete()
