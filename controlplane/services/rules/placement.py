"""Which host of a region a new project goes to: of those that can run it, the one with the most
room. What counts as room, and how much, is in PERCH_PLACEMENT."""

import math
from collections.abc import Callable, Mapping, Sequence

from django.conf import settings
from django.db import connection
from django.db.models import F, Sum

from controlplane.compute.data.branch_data import MIN_BRANCH_BYTES
from controlplane.compute.processes.limits import BYTES_PER_CU
from controlplane.database.version import perch_version
from controlplane.models import UNFINISHED, EndpointState, Host, LogReceiver, Project, Region
from controlplane.operations.actions.table import STARTS
from controlplane.services.errors import HostAway, Unprocessable

# The compute units of the endpoints that run or are being started, by host. Starts count at once,
# so that many projects which are created at the same time do not all go to one host.
RUNNING = """
SELECT host_id, sum(units) FROM (
    SELECT host_id, sum(autoscaling_limit_max_cu) AS units FROM controlplane_endpoint
    WHERE deleted_at IS NULL AND current_state = 'active' AND host_id = ANY(%(hosts)s)
    GROUP BY host_id
    UNION ALL
    SELECT host_id, sum(autoscaling_limit_max_cu) FROM controlplane_endpoint
    WHERE current_state <> 'active' AND host_id = ANY(%(hosts)s) AND id IN (
        SELECT endpoint_id FROM controlplane_operation
        WHERE status IN ({unfinished}) AND action = ANY(%(starts)s)
    )
    GROUP BY host_id
) AS busy
GROUP BY host_id
""".replace("{unfinished}", ", ".join(f"'{status}'" for status in UNFINISHED))


def choose_host(
    region: Region,
    *,
    pg_version: int | None = None,
    needs_pooler: bool = False,
    needs_filter: bool = False,
) -> tuple[Host, int]:
    """The host and the major version of Postgres for a new project, which may want a certain major
    version (`pg_version`), PgBouncer, or outgoing connections that are filtered.

    Never a host that drains or runs another version of Perch. If no host has what else it needs,
    has room, or is alive, another one is returned: the caller's later steps refuse the project with
    the reason. Raises Unprocessable, HostAway.
    """
    hosts = [host for host in region.hosts.order_by("id") if host.pg_version is not None]
    if not hosts:
        raise Unprocessable(f'no worker has started in the region "{region.id}" yet; try again')
    hosts = _those(
        hosts,
        lambda host: not host.draining,
        Unprocessable(f'region "{region.id}" accepts no new projects', fields=["region_id"]),
    )
    hosts = _those(
        hosts,
        lambda host: host.version == perch_version(),
        HostAway(
            f'the hosts of the region "{region.id}" run another version of Perch than this API; '
            "try again when they have been upgraded"
        ),
    )
    versions = versions_of(hosts)
    if pg_version is not None and pg_version not in versions:
        raise Unprocessable(
            f'pg_version {pg_version} is not available in the region "{region.id}"; '
            f"use {' or '.join(map(str, versions))}",
            fields=["pg_version"],
        )
    hosts = [host for host in hosts if pg_version is None or pg_version in versions_of([host])]
    for suits in (
        lambda host: host.pooling_available or not needs_pooler,
        lambda host: not host.outbound_unfiltered or not needs_filter,
        lambda host: not host.is_full,
        lambda host: not host.is_away,
        # If all are silent, a worker that restarts is better than one that is away.
        lambda host: not host.silent_processes(),
    ):
        hosts = list(filter(suits, hosts)) or hosts
    host = hosts[0] if len(hosts) == 1 else _roomiest(hosts)
    return host, pg_version or host.pg_version or max(host.pg_versions)


def _those(hosts: Sequence[Host], suits: Callable[[Host], bool], refusal: Exception) -> list[Host]:
    found = list(filter(suits, hosts))
    if not found:
        raise refusal
    return found


def _roomiest(hosts: Sequence[Host]) -> Host:
    running = _running_on(hosts)
    return max(hosts, key=lambda host: weighted_room(host, running.get(host.id, 0)))


def weighted_room(host: Host, running_cu: float) -> float:
    """How much room the host has for new projects, while endpoints of `running_cu` compute units
    run on it: at most 1, and less than 0 if more is promised than the host has."""
    weights: Mapping[str, float] = settings.PLACEMENT
    room = {
        "disk": _free(
            (host.disk_free_bytes or 0) - (host.disk_reserve_bytes or 0), host.disk_bytes
        ),
        "memory": _free((host.memory_bytes or 0) - running_cu * BYTES_PER_CU, host.memory_bytes),
        "cpu": _free((host.cpus or 0) - (host.cpu_load or 0), host.cpus),
    }
    return sum(weights[name] * part for name, part in room.items()) / sum(weights.values())


def _free(free: float, whole: int | None) -> float:
    return free / whole if whole else 0.0


def largest_endpoint(project: Project) -> float:
    """The compute units that an endpoint of the project may have: what the largest host of its
    region has, as the project can be moved there. That is the larger of its processors and its
    memory in units of 4 GB. A host that has not published these has no limit."""
    hosts = Host.objects.filter(region=project.region_id, lost_at=None)
    return max(map(_units, hosts), default=math.inf)


def fits(project: Project, units: float) -> bool:
    """Whether an endpoint of the project may have these compute units. Reads other hosts only if
    the project's own one is too small."""
    return units <= _units(project.host) or units <= largest_endpoint(project)


def _units(host: Host) -> float:
    if host.cpus is None or host.memory_bytes is None:
        return math.inf
    return max(1, host.cpus, math.ceil(host.memory_bytes / BYTES_PER_CU))


def pg_versions(region: Region) -> list[int]:
    """All major versions of Postgres that a new project in the region can have, in order."""
    return versions_of(list(region.hosts.all()))


def default_pg_version(region: Region) -> int | None:
    """The major version of Postgres that a new project gets if its request names none, which is
    the one of its host; the newest if hosts differ. None until a worker of the region has
    started."""
    return max((host.pg_version for host in region.hosts.all() if host.pg_version), default=None)


def versions_of(hosts: Sequence[Host]) -> list[int]:
    """All major versions of Postgres that the hosts have, in order. A host has none until its
    worker has started."""
    # A worker of an earlier release publishes only the first.
    found = {major for host in hosts for major in (host.pg_version, *host.pg_versions) if major}
    return sorted(found)


class Placing:
    """Chooses hosts for projects that already exist, such as those of a lost host, one after
    another: each project takes room of the host that was chosen for it."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = hosts
        self._running = _running_on(hosts)

    def choose(self, project: Project) -> Host | None:
        """The host with the most room that has the project's version of Postgres; None if there is
        none."""
        branches = project.branches.filter(deleted_at=None)
        sizes = branches.values_list("logical_size", flat=True)
        bytes_needed = sum(max(size or 0, MIN_BRANCH_BYTES) for size in sizes)
        fitting = []
        for host in self._hosts:
            free = (host.disk_free_bytes or 0) - (host.disk_reserve_bytes or 0)
            has_room = host.disk_free_bytes is None or free >= bytes_needed
            if has_room and project.pg_version in versions_of([host]):
                fitting.append(host)
        if not fitting:
            return None
        # The newest log is already there, if commits waited for a second host.
        receiving = LogReceiver.objects.filter(branch__project=project, host__in=fitting)
        receiver = receiving.order_by(
            F("lost_at").desc(nulls_first=True), F("attached_at").desc(nulls_last=True)
        ).first()
        near = [one for one in fitting if receiver is not None and one.id == receiver.host_id]
        chosen = max(
            near or fitting, key=lambda host: weighted_room(host, self._running.get(host.id, 0))
        )
        if chosen.disk_free_bytes is not None:
            chosen.disk_free_bytes -= bytes_needed
        active = project.endpoints.filter(deleted_at=None, current_state=EndpointState.ACTIVE)
        units = active.aggregate(units=Sum("autoscaling_limit_max_cu"))["units"] or 0
        self._running[chosen.id] = self._running.get(chosen.id, 0) + units
        return chosen


def _running_on(hosts: Sequence[Host]) -> dict[str, float]:
    """The compute units that run or are being started on each host."""
    with connection.cursor() as cursor:
        cursor.execute(
            RUNNING,
            {
                "starts": list(STARTS),
                "hosts": [host.id for host in hosts],
            },
        )
        return dict(cursor.fetchall())
