"""Reads the state of the service itself, by calls that only Perch's management API has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from console.api.fields import JSONObject, Resource, count, inner, mapping, objects, required, text
from console.api.transport import Calls, may_be_missing


@dataclass(frozen=True)
class RegionStatus(Resource):
    id: Annotated[str, required]
    # Its processes whose sign of life is missing.
    missing: Sequence[str]


@dataclass(frozen=True)
class Queue(Resource):
    name: Annotated[str, "lane"]
    waiting: int
    under_way: int
    oldest_seconds: float


@dataclass(frozen=True)
class Host(Resource):
    """A host of a region. Sizes are in bytes and times in seconds; None if not known."""

    id: Annotated[str, required]
    region_id: str
    host: str
    port: int
    draining: bool
    # Whether it was declared lost.
    lost: Annotated[bool, lambda data, _: bool(text(data, "lost_at"))]
    missing: Sequence[str]
    # As sentences.
    problems: Annotated[Sequence[str], lambda data, name: _details(data.get(name))]
    worker_seen: Annotated[int | None, "worker_seen_seconds_ago"]
    proxy_seen: Annotated[int | None, "proxy_seen_seconds_ago"]
    # All major versions of Postgres that it has, the default first.
    pg_versions: Annotated[Sequence[int], lambda data, _: _versions(data)]
    # The ids of active endpoints.
    on_replaced_postgres: Sequence[str]
    pooler_version: str
    pooler_prepares: Annotated[bool, lambda data, name: data.get(name) is not False]
    version: str
    cpus: int | None
    # The load average of the last minute.
    cpu_load: float
    memory: Annotated[int | None, "memory_bytes"]
    disk_free: Annotated[int | None, "disk_free_bytes"]
    disk_reserve: Annotated[int | None, "disk_reserve_bytes"]
    lanes: Annotated[
        Sequence[Queue], lambda data, name: [*map(Queue.read, objects(data.get(name) or []))]
    ]
    # The number of endpoints by state: active, idle, disabled. The API calls them computes.
    computes: Annotated[Mapping[str, int], lambda data, name: _by_state(inner(data, name))]


def _details(problems: object) -> list[str]:
    return [text(one, "detail") for one in objects(problems or [])]


def _by_state(computes: JSONObject) -> dict[str, int]:
    return {state: count(computes, state) for state in ("active", "idle", "disabled")}


def _versions(data: JSONObject) -> list[int]:
    default = count(data, "pg_version")
    others = data.get("pg_versions")
    if not isinstance(others, list):
        others = []
    majors = [one for one in [default, *others] if type(one) is int and one]
    return list(dict.fromkeys(majors))


@dataclass(frozen=True)
class ServiceDetails(Resource):
    version: str
    hosts: Annotated[Sequence[Host], lambda data, name: [*map(Host.read, objects(data, name))]]
    webhooks: Annotated[Queue, lambda data, name: Queue.read(inner(data, name))]


class StatusCalls(Calls):
    def regions(self) -> list[RegionStatus]:
        data = self.transport.get("status")
        return [RegionStatus.read(item) for item in objects(data, "regions")]

    def drain(self, host_id: str, *, draining: bool) -> None:
        body = {"host": {"draining": draining}}
        self.transport.send("PATCH", "status", "hosts", host_id, body=body)

    def declare_lost(self, host_id: str) -> int:
        """Returns the number of projects that other hosts restore."""
        data = self.transport.send("POST", "status", "hosts", host_id, "lost")
        return count(mapping(data), "restored_elsewhere")

    def remove(self, host_id: str) -> None:
        self.transport.send("DELETE", "status", "hosts", host_id)

    def details(self) -> ServiceDetails:
        """Return the details that only the accounts that run the service may read."""
        with may_be_missing("The server does not report its status."):
            return ServiceDetails.read(mapping(self.transport.get("status", "hosts")))
