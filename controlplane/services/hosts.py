"""Regions and hosts: what they publish, their problems as /healthz and /status report them, and
what operators do with hosts."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Q, QuerySet

from controlplane import clock
from controlplane.models import (
    UNFINISHED,
    EndpointState,
    Host,
    Job,
    Lane,
    Operation,
    Project,
    Region,
)
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
        Job.objects.filter(queue__in=queues).delete()
        host.delete()


def list_regions() -> list[Region]:
    """All regions with their hosts, the default first."""
    return list(Region.objects.order_by("-default", "id").prefetch_related("hosts"))


def list_hosts() -> list[Host]:
    """All hosts, those of the default region first."""
    return list(Host.objects.order_by("-region__default", "region", "id"))


def certificate_authorities() -> str:
    """The certificate authorities that clients must trust to verify the certificates of the
    regions' proxies, concatenated in PEM; "" if operators provide all certificates."""
    published = Host.objects.exclude(certificate_authority="").order_by("-region__default", "id")
    authorities = published.values_list("certificate_authority", flat=True)
    return "".join(dict.fromkeys(authorities))


def publish_certificate_authority(host_id: str, pem: str) -> None:
    """Store the certificate authority of the host's proxy, in PEM; "" if the operator provides
    the certificate."""
    changed = Host.objects.filter(id=host_id).exclude(certificate_authority=pem)
    changed.update(certificate_authority=pem)


def publish_peer(host_id: str, *, address: str, port: int, certificate: str) -> None:
    """Store where the proxies of the region's other hosts reach the host's proxy, and the
    certificate, in PEM, by which they and it recognize each other."""
    values = {"peer_address": address, "peer_port": port, "peer_certificate": certificate}
    Host.objects.filter(id=host_id).exclude(**values).update(**values)


def problems_of(host: Host) -> list[dict[str, str]]:
    """The present problems, as {name, detail}. What a process published is out of date once its
    sign of life is."""
    silent = host.silent_processes()
    found = [] if "worker" in silent else list(host.problems)
    found += [] if "proxy" in silent else host.proxy_problems
    return found + _of_backups(host)


def _of_backups(host: Host) -> list[dict[str, str]]:
    """Reported from the first backup on: a service whose operator never made one is none the worse
    for its age."""
    if host.backups_since is None:
        return []
    taken = host.backup_taken_at or host.backups_since
    verified = host.backup_verified_at or host.backups_since
    found = []
    if _is_older(taken, timedelta(hours=settings.BACKUP_HOURS)):
        detail = f"the last complete backup is of {taken:%Y-%m-%d %H:%M} UTC"
        found.append({"name": "backup_old", "detail": detail})
    if _is_older(verified, timedelta(days=settings.BACKUP_VERIFIED_DAYS)):
        detail = f"no backup since {verified:%Y-%m-%d} was verified (`backup --verify`)"
        found.append({"name": "backup_unverified", "detail": detail})
    return found


def _is_older(at: datetime, age: timedelta) -> bool:
    """False if the age is 0: the operator wants no such problem."""
    return age > timedelta(0) and clock.now() - at > age
