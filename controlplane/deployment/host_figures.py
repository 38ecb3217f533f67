"""The figures of this host that no process keeps: `manage.py metrics` reads them when they are
asked for, from Perch's own database and the disk."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from importlib import metadata
from pathlib import Path

from django.conf import settings
from django.db import Error, close_old_connections
from django.db.models import Count, Sum
from django.db.models.functions import Coalesce
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from controlplane import clock
from controlplane.compute.data.state_directory import is_identity
from controlplane.compute.host.space import host_space
from controlplane.events import outbox
from controlplane.metrics import values
from controlplane.metrics.figures import READ_FROM_HOST, known_names
from controlplane.models import Branch, DeliveryStatus, Host, WebhookDelivery
from controlplane.services.hosts import problems_of
from controlplane.services.monitoring.health import computes_by_host, lanes_of, queues

log = logging.getLogger(__name__)

# Seconds for which an answer is given again, so that callers cannot load the database.
ANSWER_TTL = 2.0
# A figure's name, its labels' values, and the value.
Sample = tuple[str, tuple[str, ...], float]


class HostFigures(Collector):
    """All figures of this host: those of its processes and those that are read here."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._families: list[Metric] = []

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            if time.monotonic() - self._read_at > ANSWER_TTL:
                kept = values.collect(self._directory, known_names())
                self._families = [*kept, *_families()]
                self._read_at = time.monotonic()
            return self._families

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry would otherwise read everything when this is registered."""
        return []


def _families() -> Iterator[Metric]:
    families = {
        name: GaugeMetricFamily(name, about, labels=labels)
        for name, (about, *labels) in READ_FROM_HOST.items()
    }
    for name, labels, value in _samples():
        families[name].add_metric(labels, value)
    yield from families.values()


def _samples() -> Iterator[Sample]:
    with suppress(metadata.PackageNotFoundError):
        yield "perch_info", (metadata.version("perch-postgres"),), 1
    with suppress(OSError):
        space = host_space()
        yield "perch_disk_size_bytes", (), space.total
        yield "perch_disk_free_bytes", (), space.free
        yield "perch_disk_reserve_bytes", (), space.reserve
    try:
        close_old_connections()
        found = list(_from_database())
    except Error as error:
        log.warning("database does not answer", extra={"error": str(error)})
        yield "perch_database_up", (), 0
    else:
        yield "perch_database_up", (), 1
        yield from found
    finally:
        close_old_connections()


def _from_database() -> Iterator[Sample]:
    """The figures of this host, if this state directory serves it, and of the webhooks, whose queue
    all hosts share. Raises django.db.Error."""
    host = Host.objects.filter(id=settings.HOST_NAME).first()
    if host is None or not is_identity(host.state_id):
        # A host of the API or the console only.
        return
    now = clock.now()
    for process, seen_at in (("worker", host.worker_seen_at), ("proxy", host.proxy_seen_at)):
        if seen_at is not None:
            yield "perch_silence_seconds", (process,), max(0.0, (now - seen_at).total_seconds())
    names = Counter(problem["name"] for problem in problems_of(host))
    yield from (("perch_problem", (name,), 1) for name in names)
    yield from _queues(host)
    for state, count in computes_by_host().get(host.id, {}).items():
        yield "perch_endpoints", (state,), count
    branches = Branch.objects.filter(project__host=host, deleted_at=None)
    stored = branches.aggregate(count=Count("id"), size=Coalesce(Sum("logical_size"), 0))
    yield "perch_branches", (), stored["count"]
    yield "perch_branch_bytes", (), stored["size"]
    for name, at in (
        ("perch_backup_timestamp_seconds", host.backup_taken_at),
        ("perch_backup_verified_timestamp_seconds", host.backup_verified_at),
    ):
        yield name, (), at.timestamp() if at else 0
    pending = WebhookDelivery.objects.filter(status=DeliveryStatus.PENDING)
    yield "perch_webhook_deliveries_pending", (), pending.count()
    if store := host.history_store:
        since = store["behind_since"]
        behind = (now - datetime.fromisoformat(since)).total_seconds() if since else 0.0
        yield "perch_history_behind_branches", (), store["behind_branches"]
        yield "perch_history_behind_seconds", (), behind


def _queues(host: Host) -> Iterator[Sample]:
    webhooks = {"lane": "webhooks", **queues(outbox.QUEUE)[outbox.QUEUE]}
    for lane in (*lanes_of(host), webhooks):
        for state in ("waiting", "under_way"):
            yield "perch_queue_jobs", (lane["lane"], state), lane[state]
        yield "perch_queue_oldest_seconds", (lane["lane"],), lane["oldest_seconds"]
