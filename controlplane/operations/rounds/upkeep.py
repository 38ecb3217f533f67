"""The worker's rounds: `ROUNDS` lists what they do and how often. Features add theirs."""

import logging
import os
import subprocess
from collections.abc import Sequence
from typing import Any

import psutil
from django.conf import settings
from django.db import connection
from psycopg.types.json import Jsonb

from controlplane import clock
from controlplane.compute import compute
from controlplane.compute.data import outbound
from controlplane.compute.data.known_settings import ask_postgres
from controlplane.compute.data.state_directory import identity, place
from controlplane.compute.host.binaries import default_major, majors, postgres_version
from controlplane.compute.host.logs import follow_logs
from controlplane.compute.host.space import host_space
from controlplane.compute.pooler import pgbouncer, pooler_version
from controlplane.database.version import perch_version
from controlplane.features import (
    LONG_REST_INTERVAL,
    REST_INTERVAL,
    SHORT_REST_INTERVAL,
    Round,
    features,
)
from controlplane.models import Branch, Host, PostgresSettings, Project, Region
from controlplane.operations.actions.readings import forget_readings
from controlplane.operations.disk import guard_disk
from controlplane.operations.engine.step_history import write_lasting
from controlplane.operations.own_host import HostTaken
from controlplane.operations.rounds import vitals
from controlplane.operations.rounds.availability import check_availability
from controlplane.operations.rounds.catalog_mending import mend_catalogs
from controlplane.operations.rounds.deleted_projects import (
    make_room,
    remove_unrecovered,
    try_removals_again,
)
from controlplane.operations.rounds.expiry import expire_branches, expire_snapshots, remove_unwanted
from controlplane.operations.rounds.idleness import end_unused_poolers, suspend_idle_endpoints
from controlplane.operations.rounds.reconcile import (
    end_strays,
    reconcile_host,
    redispatch_lost_operations,
)
from controlplane.operations.rounds.retention import (
    forget_api_keys,
    forget_deleted,
    forget_events,
    forget_operations,
    forget_requests,
)
from controlplane.operations.rounds.sizes import measure_nearly_full, measure_sizes
from controlplane.operations.service_quality import count_starts, quality, sample_branches
from controlplane.operations.under_way import hear_of_cancels

log = logging.getLogger(__name__)

# Whether this process has looked for the logs of all branches: at first, a compute that has just
# ended may have left some.
_follows_logs = False


PUBLISH = """
UPDATE controlplane_host SET worker_seen_at = statement_timestamp(), {assigned}
WHERE id = %(own_id)s AND state_id = %(own_state)s AND state_place = %(own_place)s
RETURNING clock_timestamp()
"""


def publish_settings(host: Host) -> None:
    """Publish the settings that each Postgres of this host has, if that is another one than before.

    Without this list the services judge settings by their names alone, and Postgres judges them
    itself.
    """
    for major in majors():
        _publish_settings(host, major)


def _publish_settings(host: Host, major: int) -> None:
    version = postgres_version(major)
    # Those published by an older release lack these values.
    values = "known__default_text_search_config__values__isnull"
    same = PostgresSettings.objects.filter(host=host, major=major, version=version)
    if same.filter(**{values: False}).exists():
        return
    try:
        known = ask_postgres(major)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        fields = {"region": host.id, "postgres": version, "error": repr(error)}
        log.error("settings unknown", extra=fields)
        return
    PostgresSettings.objects.update_or_create(
        host=host, major=major, defaults={"version": version, "known": known}
    )


def publish_region_address(host: Host) -> None:
    """Publish the address of the host's region. If it has changed, all connection strings have the
    new one from now on. All hosts of a region are to have the same; of those that differ, the one
    counts whose worker was started last."""
    address = {"host": settings.REGION_HOST, "port": settings.REGION_PORT}
    Region.objects.filter(id=host.region_id).exclude(**address).update(**address)


def publish(host: Host) -> None:
    """Publish the worker's sign of life, its problems, and what its host can do, and set `clock`
    from the database's time. Raises HostTaken if the host is served from elsewhere."""
    space = host_space()
    program = pgbouncer()
    published: dict[str, Any] = {
        "version": perch_version(),
        "jobs_version": perch_version(),
        "cpus": len(os.sched_getaffinity(0)),
        "cpu_load": os.getloadavg()[0],
        "memory_bytes": psutil.virtual_memory().total,
        "pooling_available": program is not None,
        "pooler_version": _pooler_version(program) if program else "",
        "pg_version": default_major(),
        "pg_versions": Jsonb(majors()),
        "address": settings.HOST_ADDRESS,
        "port": settings.PROXY_PORT,
        "problems": Jsonb(vitals.problems()),
        "quality": Jsonb(quality.as_json()),
        "outbound_unfiltered": outbound.complaint(),
        "disk_bytes": space.total,
        # Without inodes, nothing can be written either.
        "disk_free_bytes": 0 if space.lacks_files else space.free,
        "disk_reserve_bytes": space.reserve,
    }
    for feature in features():
        published.update(feature.published())
    own = {"own_id": host.id, "own_state": identity(), "own_place": place()}
    with connection.cursor() as cursor:
        sent_at = clock.running_for()
        assigned = ", ".join(f"{name} = %({name})s" for name in published)
        cursor.execute(PUBLISH.replace("{assigned}", assigned), {**published, **own})
        found = cursor.fetchone()
    if found is None:
        raise HostTaken(f'the host "{host.id}" is served from elsewhere now')
    clock.adjust(found[0], sent_at=sent_at, answered_at=clock.running_for())


def _pooler_version(program: str) -> str:
    """Return the version as "1.25"; "" if the program does not report it."""
    try:
        major, minor = pooler_version(program)
    except (OSError, subprocess.SubprocessError) as error:
        log.error("pooler's version unknown", extra={"program": program, "error": repr(error)})
        return ""
    return f"{major}.{minor}"


def follow_compute_logs(host: Host) -> None:
    """Read the logs of this host's computes, whichever process started them."""
    global _follows_logs
    follow_logs(compute.working_branches() if _follows_logs else None)
    _follows_logs = True


def hold_outbound(host: Host) -> None:
    """Restrict the outgoing connections of this host's computes to what they may reach."""
    projects = Project.objects.filter(
        host=host, deleted_at=None, settings__block_outbound_connections=True
    )
    closed = Branch.objects.filter(project__in=projects, deleted_at=None)
    before = outbound.complaint()
    outbound.hold_outbound(lambda: set(closed.values_list("id", flat=True)))
    if (why := outbound.complaint()) and why != before:
        log.warning("computes' connections are not filtered", extra={"reason": why})


ROUNDS: Sequence[Round] = (
    Round(0.2, hear_of_cancels, at_rest=REST_INTERVAL),
    Round(0.5, suspend_idle_endpoints, at_rest=REST_INTERVAL),
    Round(0.5, guard_disk, at_rest=2),
    Round(2, reconcile_host, at_rest=REST_INTERVAL),
    Round(10, end_strays, at_rest=LONG_REST_INTERVAL),
    Round(2, mend_catalogs, at_rest=REST_INTERVAL),
    Round(5, hold_outbound, at_rest=LONG_REST_INTERVAL),
    Round(2, publish),
    Round(2, end_unused_poolers, at_rest=REST_INTERVAL),
    Round(10, redispatch_lost_operations, at_rest=REST_INTERVAL),
    Round(10, check_availability, at_rest=SHORT_REST_INTERVAL),
    Round(10, count_starts, at_rest=REST_INTERVAL),
    Round(60, sample_branches),
    Round(10, expire_branches, at_rest=20),
    Round(30, measure_sizes, at_rest=REST_INTERVAL),
    Round(2, measure_nearly_full, at_rest=REST_INTERVAL),
    Round(5, follow_compute_logs, at_rest=REST_INTERVAL),
    Round(1, write_lasting, at_rest=REST_INTERVAL),
    Round(10, remove_unwanted, at_rest=SHORT_REST_INTERVAL),
    Round(10, expire_snapshots, at_rest=20),
    Round(10, remove_unrecovered, at_rest=20),
    Round(2, make_room, at_rest=10),
    Round(60, try_removals_again, at_rest=LONG_REST_INTERVAL),
    Round(600, forget_deleted),
    Round(600, forget_operations),
    Round(60, forget_requests, at_rest=LONG_REST_INTERVAL),
    Round(60, forget_readings, at_rest=LONG_REST_INTERVAL),
    Round(600, forget_events),
    Round(600, forget_api_keys),
)


def all_rounds() -> list[Round]:
    """The rounds of the core and of the features."""
    return [*ROUNDS, *(one for feature in features() for one in feature.rounds)]
