"""Whether the service works, for monitoring (`Health`), and the status of all regions and hosts:
for users, and in detail for operators.

The health is that of this host. Missing processes and problems of other hosts are shown, but do not
change it. On a machine that runs only the API, it is the health of the first host of the region in
its settings, or else of the default region.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import connection
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
    Lane,
    PostgresSettings,
    Region,
)
from controlplane.services.account_management import check_operator
from controlplane.services.hosts import list_hosts, list_regions, problems_of

# Seconds that the oldest job of a lane may wait for a slot before that is reported as a problem.
MAX_WAIT = {Lane.WAKES: 5, Lane.REQUESTS: 30, Lane.UPKEEP: 600}
MAX_WEBHOOKS_WAIT = 60

QUEUES = """
SELECT queue, count(*) FILTER (WHERE taken_by IS NULL), count(taken_by),
    coalesce(extract(epoch FROM now() - min(due_at)
        FILTER (WHERE taken_by IS NULL AND due_at <= now())), 0)
FROM controlplane_job WHERE queue = ANY(%s) GROUP BY queue
"""


@dataclass(frozen=True)
class Health:
    # The processes without a recent sign of life. Each is necessary for the service to work.
    missing: list[str]
    # The names of problems. Each may affect only a few endpoints.
    problems: list[str] = field(default_factory=list)
    # For operators: messages and counts, without data of accounts.
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> str:
        if self.missing:
            return "unavailable"
        return "degraded" if self.problems else "ok"


def ask_database() -> None:
    """Raises django.db.Error if the database does not answer."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT")


def examine() -> Health:
    """Read the health of this host, and the state of all hosts. Raises django.db.Error."""
    hosts = list_hosts()
    own = _own(hosts)
    if own is None:
        return Health(["worker", "proxy"])
    missing = own.silent_processes()
    lanes = lanes_of(own)
    found = [_slow(lane) for lane in lanes if lane["oldest_seconds"] > MAX_WAIT[lane["lane"]]]
    webhooks = queues(outbox.QUEUE)[outbox.QUEUE]
    if webhooks["oldest_seconds"] > MAX_WEBHOOKS_WAIT:
        seconds = webhooks["oldest_seconds"]
        detail = f"a webhook has waited {seconds:.0f} s for a worker to send to it"
        found.append({"name": "webhooks_wait", "detail": detail})
    found += problems_of(own)
    return Health(
        missing,
        sorted({problem["name"] for problem in found}),
        {
            "region": own.region_id,
            "host": own.id,
            "problems": found,
            "lanes": lanes,
            "webhooks": webhooks,
            "history_store": own.history_store,
            "quality": own.quality,
            "backup": {"taken_at": own.backup_taken_at, "verified_at": own.backup_verified_at},
            "regions": _regions([_host_figures(host) for host in hosts]),
            "hosts": [_host_figures(host) for host in hosts],
        },
    )


def _own(hosts: list[Host]) -> Host | None:
    """`hosts` begin with those of the default region."""
    by_preference = (
        lambda host: host.id == settings.HOST_NAME,
        lambda host: host.region_id == settings.REGION,
        lambda host: True,
    )
    found = (host for suits in by_preference for host in hosts if suits(host))
    return next(found, None)


def lanes_of(host: Host) -> list[dict[str, Any]]:
    """The numbers of waiting and running jobs of each lane, and how many seconds the oldest job
    that could start has waited."""
    names = {lane: host.queue(lane) for lane in Lane}
    found = queues(*names.values())
    return [{"lane": lane.value, **found[queue]} for lane, queue in names.items()]


def queues(*names: str) -> dict[str, dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(QUEUES, [list(names)])
        rows = {row[0]: row[1:] for row in cursor.fetchall()}
    found = {}
    for name in names:
        waiting, under_way, oldest = rows.get(name, (0, 0, 0))
        found[name] = {
            "waiting": waiting,
            "under_way": under_way,
            "oldest_seconds": round(float(oldest), 1),
        }
    return found


def _slow(lane: dict[str, Any]) -> dict[str, str]:
    detail = f"a job of the lane {lane['lane']} has waited {lane['oldest_seconds']:.0f} s"
    return {"name": "lane_waits", "detail": detail}


def _host_figures(host: Host) -> dict[str, Any]:
    now = clock.now()
    seen = {"worker": host.worker_seen_at, "proxy": host.proxy_seen_at}
    return {
        "id": host.id,
        "region": host.region_id,
        "host": host.address,
        "draining": host.draining,
        "outbound_unfiltered": host.outbound_unfiltered,
        "missing": host.silent_processes(),
        "problems": sorted({problem["name"] for problem in problems_of(host)}),
        "seen_seconds_ago": {
            name: round((now - at).total_seconds(), 1) if at else None for name, at in seen.items()
        },
    }


def _regions(hosts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same by region: what is missing or wrong on any of its hosts, and the host that was last
    seen the longest ago."""
    found = []
    for region in sorted({host["region"] for host in hosts}):
        of_it = [host for host in hosts if host["region"] == region]
        first = of_it[0]
        found.append(
            {
                "id": region,
                "host": first["host"],
                "draining": all(host["draining"] for host in of_it),
                "outbound_unfiltered": next(
                    (why for host in of_it if (why := host["outbound_unfiltered"])), ""
                ),
                "missing": [
                    name for name in PROCESSES if any(name in host["missing"] for host in of_it)
                ],
                "problems": sorted({name for host in of_it for name in host["problems"]}),
                "seen_seconds_ago": {
                    name: _longest([host["seen_seconds_ago"][name] for host in of_it])
                    for name in PROCESSES
                },
            }
        )
    return found


def _longest(ages: list[float | None]) -> float | None:
    known = [age for age in ages if age is not None]
    return max(known) if len(known) == len(ages) else None


# Of the endpoints on replaced programs, so many are named.
MAX_NAMED = 100
# The fields of a host's status that its row has under the same names.
AS_PUBLISHED = (
    *("region_id", "port", "draining", "lost_at", "pg_version", "pg_versions", "pooler_version"),
    *("outbound_unfiltered", "version", "cpus", "cpu_load", "memory_bytes"),
    *("disk_bytes", "disk_free_bytes", "disk_reserve_bytes"),
)


def region_statuses() -> list[dict[str, Any]]:
    """The status of all regions for their users, the default first: which processes have no recent
    sign of life on some of a region's hosts, and the names of their other problems."""
    return [_region_status(region, list(region.hosts.all())) for region in list_regions()]


def _region_status(region: Region, hosts: list[Host]) -> dict[str, Any]:
    silent = {name for host in hosts for name in host.silent_processes()}
    return {
        "id": region.id,
        "name": region.name,
        "missing": [name for name in PROCESSES if name in silent or not hosts],
        "problems": sorted({problem["name"] for host in hosts for problem in problems_of(host)}),
    }


def service_details(account: Account) -> dict[str, Any]:
    """The status of all hosts, with the version of Perch in the process that answers. Raises
    Forbidden if the account is not an operator."""
    check_operator(account)
    computes = computes_by_host()
    return {
        "version": perch_version(),
        "hosts": [_host_details(host, computes.get(host.id, {})) for host in list_hosts()],
        # The queue of jobs that send webhooks' deliveries, which all hosts share.
        "webhooks": queues(outbox.QUEUE)[outbox.QUEUE],
    }


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
