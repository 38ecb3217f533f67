"""The response fields of the service's state, for callers and for operators."""

from datetime import datetime

from ninja import Schema

from controlplane.api.http.fields import told

MISSING = "Which of `worker` and `proxy` give no sign of life"


class RegionStatusOut(Schema):
    id: str = told("The region's id", "local")
    name: str = told("The region's name", "local")
    missing: list[str] = told(MISSING, [])
    problems: list[str] = told("The names of other problems", ["disk_nearly_full"])


class ServiceStatus(Schema):
    regions: list[RegionStatusOut]


class ProblemOut(Schema):
    name: str = told("The kind of problem", "disk_nearly_full")
    detail: str = told("A description of the problem", "3.1 GB are free")


class QueueOut(Schema):
    waiting: int = told("The number that wait", 2)
    under_way: int = told("The number that are in progress", 1)
    oldest_seconds: float = told("How many seconds the oldest one that could begin has waited", 0.4)


class LaneOut(QueueOut):
    lane: str = told("`wakes`, `requests` or `upkeep`", "wakes")


class ComputesOut(Schema):
    active: int = told("The number of running endpoints", 12)
    idle: int = told("The number of suspended endpoints", 30)
    disabled: int = told("The number of disabled endpoints", 1)


class HostOut(Schema):
    id: str = told("The host's name, by which requests refer to it", "local")
    name: str = told("The same", "local")
    region_id: str = told("The id of its region", "local")
    host: str = told("The domain of the endpoints' host names", "localhost")
    port: int = told("The port that its proxy listens on", 5432)
    draining: bool = told("Whether it gets no new projects", False)
    lost_at: datetime | None = told(
        "When it was declared lost, so that other hosts restore its projects; null if it was not",
        None,
    )
    missing: list[str] = told(MISSING, [])
    problems: list[ProblemOut] = told("Other problems", [])
    worker_seen_seconds_ago: float | None = told(
        "Seconds since the worker's last sign of life; null if there was none", 0.7
    )
    proxy_seen_seconds_ago: float | None = told(
        "Seconds since the proxy's last sign of life; null if there was none", 0.7
    )
    pg_version: int | None = told("The major version of Postgres of new projects by default", 18)
    pg_versions: list[int] = told("All major versions of Postgres that it has", [15, 18])
    on_replaced_postgres: list[str] = told(
        "The active endpoints, at most 100, whose Postgres is another minor release than that of "
        "the host's programs now; `perch computes restart` restarts them",
        [],
    )
    pooler_version: str = told("The version of its PgBouncer; empty if it has none", "1.25")
    pooler_prepares: bool = told(
        "Whether its PgBouncer supports named prepared statements, as it does from version 1.21",
        True,
    )
    outbound_unfiltered: str = told(
        "Why computes can connect to the host and its network; empty if they cannot", ""
    )
    version: str = told("The version of Perch that it runs; empty before its first start", "0.3.0")
    cpus: int | None = told("The number of its processors", 8)
    cpu_load: float | None = told(
        "How many processors were busy in the last minute, on average", 0.42
    )
    memory_bytes: int | None = told("Its memory, in bytes", 34359738368)
    disk_bytes: int | None = told("The size of the state directory's disk, in bytes", 214748364800)
    disk_free_bytes: int | None = told("The free bytes on the state directory's disk", 53687091200)
    disk_reserve_bytes: int | None = told("The part of it that is reserved", 5368709120)
    lanes: list[LaneOut] = told("The waiting operations, by lane", [])
    computes: ComputesOut = told("The number of endpoints in each state", {})


class OneHost(Schema):
    host: HostOut


class LostHost(OneHost):
    restored_elsewhere: int = told("The number of projects that other hosts restore", 12)
    without_copy: int = told("The number of those that the store has no copy of", 1)
    without_place: int = told("The number of those that no other host has room for yet", 0)


class ServiceDetails(Schema):
    version: str = told("The version of Perch", "0.2.0")
    hosts: list[HostOut] = told("All hosts, those of the default region first", [])
    webhooks: QueueOut = told("The deliveries of all hosts", {})
