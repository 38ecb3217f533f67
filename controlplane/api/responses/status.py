"""The response fields of the service's state, for callers and for operators."""

from typing import Any

from ninja import Field, Schema

MISSING = "Of `worker` and `proxy`, those that do not say that they are there"


def told(description: str, example: Any) -> Any:
    return Field(description=description, examples=[example])


class RegionStatusOut(Schema):
    id: str = told("The region's id", "local")
    name: str = told("The region's name", "local")
    missing: list[str] = told(MISSING, [])
    problems: list[str] = told("What else does not go well, by name", ["disk_nearly_full"])


class ServiceStatus(Schema):
    regions: list[RegionStatusOut]


class ProblemOut(Schema):
    name: str = told("Which kind of problem", "disk_nearly_full")
    detail: str = told("What it is, in words", "3.1 GB are free")


class QueueOut(Schema):
    waiting: int = told("How many wait", 2)
    under_way: int = told("How many are being worked on", 1)
    oldest_seconds: float = told("How long the oldest that could begin has waited", 0.4)


class LaneOut(QueueOut):
    lane: str = told("`wakes`, `requests` or `upkeep`", "wakes")


class ComputesOut(Schema):
    active: int = told("Those that run", 12)
    idle: int = told("Those that sleep", 30)
    disabled: int = told("Those that were stopped", 1)


class HostOut(Schema):
    id: str = told("The region's id", "local")
    name: str = told("The region's name", "local")
    host: str = told("Endpoints are reached at names below it", "localhost")
    port: int = told("Where its proxy listens", 5432)
    draining: bool = told("Whether no new projects come here", False)
    missing: list[str] = told(MISSING, [])
    problems: list[ProblemOut] = told("What else does not go well", [])
    worker_seen_seconds_ago: float | None = told("Null where it never was", 0.7)
    proxy_seen_seconds_ago: float | None = told("Null where it never was", 0.7)
    pg_version: int | None = told("Of its Postgres", 18)
    pooler_version: str = told("Of its PgBouncer; empty where it has none", "1.25")
    pooler_prepares: bool = told(
        "Whether that takes prepared statements with names, as it does from 1.21 on", True
    )
    outbound_unfiltered: str = told(
        "Why computes may connect to the host and its network; empty where they may not", ""
    )
    disk_free_bytes: int | None = told("Of the state directory's disk", 53687091200)
    disk_reserve_bytes: int | None = told("What of it is kept back", 5368709120)
    lanes: list[LaneOut] = told("The operations that wait, by how urgent they are", [])
    computes: ComputesOut = told("How many endpoints are in which state", {})


class ServiceDetails(Schema):
    version: str = told("Of the Perch that answers", "0.2.0")
    hosts: list[HostOut] = told("Of each region, the default first", [])
    webhooks: QueueOut = told("Deliveries, of all regions", {})
