"""The status of the service: for its users, and in detail for its operators.

`health` describes one host's region, for monitoring. This module describes all regions.
"""

from dataclasses import dataclass, field
from datetime import datetime
from importlib import metadata
from typing import Any

from django.db.models import Count, Q

from controlplane import clock
from controlplane.compute.pooler_settings import keeps_prepared_statements
from controlplane.events import outbox
from controlplane.models import Account, Endpoint, EndpointState, Region
from controlplane.services.errors import Forbidden
from controlplane.services.health import lanes_of, queues
from controlplane.services.region_problems import problems_of


@dataclass(frozen=True)
class RegionStatus:
    """A region's status for its users: which of its worker and proxy have no recent sign of life,
    and the names of other problems."""

    id: str
    name: str
    missing: list[str]
    problems: list[str]

    @classmethod
    def of(cls, region: Region) -> "RegionStatus":
        names = {problem["name"] for problem in problems_of(region)}
        return cls(region.id, region.name, region.silent_processes(), sorted(names))


@dataclass(frozen=True)
class HostStatus:
    """A region's status for its operators. Sizes are in bytes, times in seconds."""

    id: str
    name: str
    host: str
    port: int
    draining: bool
    missing: list[str]
    problems: list[dict[str, str]]
    worker_seen_seconds_ago: float | None
    proxy_seen_seconds_ago: float | None
    pg_version: int | None
    pg_versions: list[int]
    # The version of its PgBouncer; "" if it has none.
    pooler_version: str
    # Whether that version supports named prepared statements.
    pooler_prepares: bool
    # Why computes can connect to the host and its network; "" if they cannot.
    outbound_unfiltered: str
    disk_free_bytes: int | None
    disk_reserve_bytes: int | None
    lanes: list[dict[str, Any]] = field(default_factory=list)
    computes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ServiceDetails:
    # The version of Perch in the process that answers.
    version: str
    hosts: list[HostStatus]
    # The queue of jobs that send webhooks' deliveries, which all regions share.
    webhooks: dict[str, Any]


def region_statuses() -> list[RegionStatus]:
    """The status of all regions, the default first."""
    return [RegionStatus.of(region) for region in Region.objects.order_by("-default", "id")]


def service_details(account: Account) -> ServiceDetails:
    """The status of all hosts. Raises Forbidden if the account is not an operator."""
    if not account.is_operator:
        raise Forbidden(
            "only the accounts named in PERCH_OPERATORS may see the hosts of this service"
        )
    regions = list(Region.objects.order_by("-default", "id"))
    computes = computes_by_region()
    return ServiceDetails(
        version=_version(),
        hosts=[_host(region, computes.get(region.id, {})) for region in regions],
        webhooks=queues(outbox.QUEUE)[outbox.QUEUE],
    )


def _host(region: Region, computes: dict[str, int]) -> HostStatus:
    missing = region.silent_processes()
    now = clock.now()
    return HostStatus(
        id=region.id,
        name=region.name,
        host=region.host,
        port=region.port,
        draining=region.draining,
        missing=missing,
        problems=problems_of(region),
        worker_seen_seconds_ago=_seconds_since(region.worker_seen_at, now),
        proxy_seen_seconds_ago=_seconds_since(region.proxy_seen_at, now),
        pg_version=region.pg_version,
        pg_versions=region.pg_versions,
        pooler_version=region.pooler_version,
        pooler_prepares=keeps_prepared_statements(region.pooler_version),
        outbound_unfiltered=region.outbound_unfiltered,
        disk_free_bytes=region.disk_free_bytes,
        disk_reserve_bytes=region.disk_reserve_bytes,
        lanes=lanes_of(region),
        computes={"active": 0, "idle": 0, "disabled": 0} | computes,
    )


def computes_by_region() -> dict[str, dict[str, int]]:
    """The numbers of active, idle and disabled endpoints, by region."""
    runs, is_off = Q(current_state=EndpointState.ACTIVE), Q(disabled=True)
    counted = (
        Endpoint.objects.filter(deleted_at=None)
        .values_list("project__region_id")
        .annotate(
            running=Count("id", filter=runs),
            asleep=Count("id", filter=~runs & ~is_off),
            off=Count("id", filter=~runs & is_off),
        )
    )
    return {
        region: {"active": running, "idle": asleep, "disabled": off}
        for region, running, asleep, off in counted
    }


def _seconds_since(moment: datetime | None, now: datetime) -> float | None:
    return round((now - moment).total_seconds(), 1) if moment else None


def _version() -> str:
    try:
        return metadata.version("perch")
    except metadata.PackageNotFoundError:
        # Perch runs from a checkout that was not installed.
        return ""
