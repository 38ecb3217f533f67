"""How many connections to the metadata the processes may have, and whether the server has room for
them. `docs/how-to/operating.md` has the same numbers."""

import os
from collections.abc import Mapping

from django.conf import settings
from django.db import connection

from controlplane.process_accounts import in_use

# The connections of each proxy process for its questions, besides one by which it hears of changes.
PROXY_QUERY_CONNECTIONS = 2
# If the proxy has an account of its own, its host process makes most of its calls: then the pools
# of its processes have one connection each, and this process's has the others, but 2 at least.
MIN_HOST_PROCESS_CONNECTIONS = 2
# The processes that each host has.
ON_EACH_HOST = ("worker", "proxy", "metrics", "up")


def most_connections() -> Mapping[str, int]:
    """The most connections of each kind of process: of the API in all, of the others on a host."""
    pools = settings.POOL_SIZES
    return {
        # Each process hears of events by one more, and the worker of jobs.
        "api": int(os.environ.get("WEB_CONCURRENCY", "1")) * (pools["api"] + 1),
        "worker": pools["worker"] + 1,
        "proxy": settings.PROXY_PROCESSES * (pools["proxy"] + PROXY_QUERY_CONNECTIONS + 1)
        + (max(0, MIN_HOST_PROCESS_CONNECTIONS - settings.PROXY_PROCESSES) if in_use() else 0),
        "metrics": 0 if settings.METRICS_LISTEN == "off" else pools["metrics"],
        "up": pools["up"],
    }


def needed_connections(*, hosts: int) -> int:
    """The most connections of one host with an API, and of all hosts, if these are
    set up as this host is."""
    most = most_connections()
    return most["api"] + hosts * sum(most[name] for name in ON_EACH_HOST)


def connection_shortage(*, hosts: int) -> str | None:
    """What to tell the operator if the server allows fewer connections than so many hosts may
    need; None if it allows enough. Raises django.db.Error."""
    with connection.cursor() as cursor:
        # The last setting exists since Postgres 16.
        cursor.execute(
            "SELECT current_setting('max_connections')::int,"
            " current_setting('superuser_reserved_connections')::int"
            " + coalesce(current_setting('reserved_connections', true)::int, 0)"
        )
        allowed, reserved = cursor.fetchone()
    if (need := needed_connections(hosts=hosts)) <= allowed - reserved:
        return None
    most = most_connections()
    each = ", ".join(f"{name} {most[name]}" for name in ON_EACH_HOST)
    return (
        f"Perch's database allows {allowed - reserved} connections (max_connections = {allowed}, "
        f"of which {reserved} are reserved), but Perch may need {need}: api {most['api']}, and for "
        f"each of {hosts} hosts {each}. Requests may fail under load. Set max_connections to "
        f"{need + reserved} or more, or lower PERCH_API_DATABASE_CONNECTIONS, "
        "PERCH_WORKER_DATABASE_CONNECTIONS or PERCH_PROXY_PROCESSES"
    )
