"""The status of the service: for its users, and in detail for its operators.

`health` describes one host, for monitoring. This module describes all.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, OuterRef, Q, QuerySet, Subquery

from controlplane import clock
from controlplane.compute.settings.pooler_settings import keeps_prepared_statements
from controlplane.database.version import perch_version
from controlplane.events import outbox
from controlplane.models import (
    PROCESSES,
    Account,
    Endpoint,
    EndpointState,
    Host,
    PostgresSettings,
    Region,
)
from controlplane.services.account_management import check_operator
from controlplane.services.health import lanes_of, queues
from controlplane.services.host_problems import problems_of
from controlplane.services.regions import list_hosts, list_regions

# Of the endpoints on replaced programs, so many are named.
MAX_NAMED = 100
# The fields of a host's status that its row has under the same names.
AS_PUBLISHED = (
    *("region_id", "port", "draining", "lost_at", "pg_version", "pg_versions", "pooler_version"),
    *("outbound_unfiltered", "version", "cpus", "cpu_load", "memory_bytes"),
    *("disk_bytes", "disk_free_bytes", "disk_reserve_bytes"),
)


@dataclass(frozen=True)
class RegionStatus:
    """A region's status for its users: which processes have no recent sign of life on some of its
    hosts, and the names of their other problems."""

    id: str
    name: str
    missing: list[str]
    problems: list[str]

    @classmethod
    def of(cls, region: Region) -> "RegionStatus":
        hosts = list(region.hosts.all())
        silent = {name for host in hosts for name in host.silent_processes()}
        names = {problem["name"] for host in hosts for problem in problems_of(host)}
        missing = [name for name in PROCESSES if name in silent or not hosts]
        return cls(region.id, region.name, missing, sorted(names))


@dataclass(frozen=True)
class ServiceDetails:
    # The version of Perch in the process that answers.
    version: str
    # As `api.responses.status.HostOut` describes them.
    hosts: list[dict[str, Any]]
    # The queue of jobs that send webhooks' deliveries, which all hosts share.
    webhooks: dict[str, Any]


def region_statuses() -> list[RegionStatus]:
    """The status of all regions, the default first."""
    return [RegionStatus.of(region) for region in list_regions()]


def service_details(account: Account) -> ServiceDetails:
    """The status of all hosts. Raises Forbidden if the account is not an operator."""
    check_operator(account)
    computes = computes_by_host()
    return ServiceDetails(
        version=perch_version(),
        hosts=[_host_details(host, computes.get(host.id, {})) for host in list_hosts()],
        webhooks=queues(outbox.QUEUE)[outbox.QUEUE],
    )


def host_status(host: Host) -> dict[str, Any]:
    """The status of one host, for operators, as `api.responses.status.HostOut` describes it."""
    return _host_details(host, computes_by_host().get(host.id, {}))


def _host_details(host: Host, computes: dict[str, int]) -> dict[str, Any]:
    now = clock.now()
    replaced = on_replaced_postgres().filter(host=host)
    return {
        **{name: getattr(host, name) for name in AS_PUBLISHED},
        "id": host.id,
        "name": host.id,
        "host": host.address,
        "missing": host.silent_processes(),
        "problems": problems_of(host),
        "worker_seen_seconds_ago": _seconds_since(host.worker_seen_at, now),
        "proxy_seen_seconds_ago": _seconds_since(host.proxy_seen_at, now),
        "on_replaced_postgres": list(replaced.values_list("id", flat=True)[:MAX_NAMED]),
        "pooler_prepares": keeps_prepared_statements(host.pooler_version),
        "lanes": lanes_of(host),
        "computes": {"active": 0, "idle": 0, "disabled": 0} | computes,
    }


def computes_by_host() -> dict[str, dict[str, int]]:
    """The numbers of active, idle and disabled endpoints, by host."""
    runs, is_off = Q(current_state=EndpointState.ACTIVE), Q(disabled=True)
    counted = (
        Endpoint.objects.filter(deleted_at=None)
        .values_list("project__host_id")
        .annotate(
            running=Count("id", filter=runs),
            asleep=Count("id", filter=~runs & ~is_off),
            off=Count("id", filter=~runs & is_off),
        )
    )
    return {
        host: {"active": running, "idle": asleep, "disabled": off}
        for host, running, asleep, off in counted
    }


def on_replaced_postgres() -> QuerySet[Endpoint]:
    """The active endpoints whose Postgres was started before its host got another minor release of
    it. They keep the old programs until they are next started."""
    of_project = {"host": OuterRef("host"), "major": OuterRef("project__pg_version")}
    present = PostgresSettings.objects.filter(**of_project).values("version")
    runs = Endpoint.objects.filter(deleted_at=None, current_state=EndpointState.ACTIVE)
    return runs.exclude(pg_release__in=["", Subquery(present)]).order_by("id")


def _seconds_since(moment: datetime | None, now: datetime) -> float | None:
    return round((now - moment).total_seconds(), 1) if moment else None
