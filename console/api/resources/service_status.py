"""Reads the state of the service itself, by calls that only Perch's management API has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from console.api.errors import NonsenseAnswer
from console.api.fields import JSONObject, inner, number, objects, required, text, texts, whole
from console.api.transport import Transport, may_be_missing


@dataclass(frozen=True)
class RegionStatus:
    id: str
    # Its processes whose sign of life is missing.
    missing: Sequence[str]

    @classmethod
    def read(cls, data: JSONObject) -> "RegionStatus":
        return cls(required(data, "id"), texts(data, "missing"))


@dataclass(frozen=True)
class Queue:
    name: str
    waiting: int
    under_way: int
    oldest_seconds: float

    @classmethod
    def read(cls, data: JSONObject, name: str = "") -> "Queue":
        return cls(
            name or text(data, "lane"),
            waiting=int(number(data, "waiting")),
            under_way=int(number(data, "under_way")),
            oldest_seconds=number(data, "oldest_seconds"),
        )


@dataclass(frozen=True)
class Host:
    """A host of a region. Sizes are in bytes and times in seconds; None if not known."""

    id: str
    region_id: str
    host: str
    port: int
    draining: bool
    # Whether it was declared lost.
    lost: bool
    missing: Sequence[str]
    # As sentences.
    problems: Sequence[str]
    worker_seen: int | None
    proxy_seen: int | None
    # All major versions of Postgres that it has, the default first.
    pg_versions: Sequence[int]
    # The ids of active endpoints.
    on_replaced_postgres: Sequence[str]
    pooler_version: str
    version: str
    cpus: int | None
    # The load average of the last minute.
    cpu_load: float
    memory: int | None
    disk_free: int | None
    disk_reserve: int | None
    lanes: Sequence[Queue]
    # The number of endpoints by state: active, idle, disabled. The API calls them computes.
    computes: Mapping[str, int]

    @classmethod
    def read(cls, data: JSONObject) -> "Host":
        computes = inner(data, "computes")
        return cls(
            id=required(data, "id"),
            region_id=text(data, "region_id"),
            host=text(data, "host"),
            port=int(number(data, "port")),
            draining=data.get("draining") is True,
            lost=bool(text(data, "lost_at")),
            missing=texts(data, "missing"),
            problems=[text(one, "detail") for one in objects(data.get("problems") or [])],
            worker_seen=whole(data, "worker_seen_seconds_ago"),
            proxy_seen=whole(data, "proxy_seen_seconds_ago"),
            pg_versions=_versions(data),
            on_replaced_postgres=texts(data, "on_replaced_postgres"),
            pooler_version=text(data, "pooler_version"),
            version=text(data, "version"),
            cpus=whole(data, "cpus"),
            cpu_load=number(data, "cpu_load"),
            memory=whole(data, "memory_bytes"),
            disk_free=whole(data, "disk_free_bytes"),
            disk_reserve=whole(data, "disk_reserve_bytes"),
            lanes=[Queue.read(one) for one in objects(data.get("lanes") or [])],
            computes={name: int(number(computes, name)) for name in ("active", "idle", "disabled")},
        )


def _versions(data: JSONObject) -> list[int]:
    default = int(number(data, "pg_version"))
    others = data.get("pg_versions")
    if not isinstance(others, list):
        others = []
    majors = [one for one in [default, *others] if type(one) is int and one]
    return list(dict.fromkeys(majors))


@dataclass(frozen=True)
class ServiceDetails:
    version: str
    hosts: Sequence[Host]
    webhooks: Queue


class StatusCalls:
    """One method per call. Every method raises an `APIError` if its call fails."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def regions(self) -> list[RegionStatus]:
        data = self._transport.get("status")
        return [RegionStatus.read(item) for item in objects(data, "regions")]

    def drain(self, host_id: str, *, draining: bool) -> None:
        body = {"host": {"draining": draining}}
        self._transport.send("PATCH", "status", "hosts", host_id, body=body)

    def declare_lost(self, host_id: str) -> int:
        """Returns the number of projects that other hosts restore."""
        data = self._transport.send("POST", "status", "hosts", host_id, "lost")
        return int(number(data if isinstance(data, Mapping) else {}, "restored_elsewhere"))

    def remove(self, host_id: str) -> None:
        self._transport.send("DELETE", "status", "hosts", host_id)

    def details(self) -> ServiceDetails:
        """Return the details that only the accounts that run the service may read."""
        with may_be_missing("The server does not report its status."):
            data = self._transport.get("status", "hosts")
        if not isinstance(data, Mapping):
            raise NonsenseAnswer("The response is not an object.")
        return ServiceDetails(
            version=text(data, "version"),
            hosts=[Host.read(item) for item in objects(data, "hosts")],
            webhooks=Queue.read(inner(data, "webhooks"), "webhooks"),
        )
