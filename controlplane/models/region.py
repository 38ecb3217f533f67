"""A region: the host name that its endpoints share, and the queues of its worker."""

from datetime import datetime, timedelta

from django.db import models

from controlplane import clock

# The worker and the proxy write a sign of life every two seconds.
SILENT_AFTER = timedelta(seconds=5)
# A worker may be restarted within this time. After it, its region counts as away, and no new
# operations are accepted for it.
AWAY_AFTER = timedelta(seconds=15)


class Region(models.Model):
    id = models.CharField(primary_key=True, max_length=60)
    name = models.CharField(max_length=64)
    # Endpoints are reached as `<endpoint_id>.<host>`.
    host = models.CharField(max_length=200)
    # The proxy's port. Connection strings leave it out if it is 5432.
    port = models.PositiveIntegerField(default=5432)
    default = models.BooleanField(default=False)
    # The id of the state directory that serves the region (`compute.state_directory.identity`). If
    # two state directories served the same region, each would treat the other's computes as dead.
    state_id = models.CharField(max_length=36, null=True)
    # Published by its worker: whether PgBouncer is installed on its host.
    pooling_available = models.BooleanField(default=False)
    # The version of its PgBouncer, as "1.25"; "" if there is none, or the worker has not published
    # it yet.
    pooler_version = models.CharField(max_length=16, default="", db_default="")
    # Published by its worker: the major version of Postgres that new projects get by default, and
    # all that its host has, in order.
    pg_version = models.PositiveSmallIntegerField(null=True)
    pg_versions = models.JSONField(default=list, db_default=models.Value([], models.JSONField()))
    # Published by its worker: the free bytes on its disk, and how many branches must leave free.
    disk_free_bytes = models.BigIntegerField(null=True)
    disk_reserve_bytes = models.BigIntegerField(null=True)
    # Signs of life, written by the region's worker and proxy while they run; /healthz reads them.
    worker_seen_at = models.DateTimeField(null=True)
    proxy_seen_at = models.DateTimeField(null=True)
    # When a worker last checked which computes run. A compute that has ended since then counts as
    # having run until then. It keeps its value during an outage of the worker, unlike the two
    # above.
    computes_seen_at = models.DateTimeField(null=True)
    # Published by its worker: its problems, as [{name, detail}].
    problems = models.JSONField(default=list, db_default=[])
    # The same of its proxy.
    proxy_problems = models.JSONField(default=list, db_default=models.Value([], models.JSONField()))
    # Published by its worker: what users get (`operations.service_quality`).
    quality = models.JSONField(default=dict, db_default=models.Value({}, models.JSONField()))
    # Noted by `manage.py backup`: when the first backup was taken, and the moments of the rows in
    # the newest complete backup and in the newest one that was verified.
    backups_since = models.DateTimeField(null=True)
    backup_taken_at = models.DateTimeField(null=True)
    backup_verified_at = models.DateTimeField(null=True)
    # Published by its worker: the state of the history's copy off the host; {} without a store.
    history_store = models.JSONField(default=dict, db_default=models.Value({}, models.JSONField()))
    # Published by its worker: why computes there can connect to its host and its network; "" if
    # they cannot.
    outbound_unfiltered = models.CharField(max_length=200, default="", db_default="")
    # Published by its proxy, in PEM: the certificate authority that clients must trust to verify
    # its certificate; "" if the operator provides the certificate.
    certificate_authority = models.TextField(default="", db_default="")
    # Set by `manage.py regions drain`: the region accepts no new projects.
    draining = models.BooleanField(default=False, db_default=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                name="one_default_region", fields=["default"], condition=models.Q(default=True)
            ),
        )

    def __str__(self) -> str:
        return self.id

    @property
    def is_full(self) -> bool:
        """Whether its host's disk has no room for new branches."""
        free, reserve = self.disk_free_bytes, self.disk_reserve_bytes
        return free is not None and reserve is not None and free < reserve

    @property
    def is_away(self) -> bool:
        """Whether its worker has written no sign of life lately, so that no process would run an
        operation."""
        return _is_older(self.worker_seen_at, AWAY_AFTER)

    def silent_processes(self) -> list[str]:
        """Those of its processes ("worker", "proxy") that have written no sign of life lately."""
        seen = {"worker": self.worker_seen_at, "proxy": self.proxy_seen_at}
        return [name for name, at in seen.items() if _is_older(at, SILENT_AFTER)]

    def queue(self, lane: str) -> str:
        """The Procrastinate queue of one of this region's lanes (`models.Lane`)."""
        return f"region-{self.id}-{lane}"


def _is_older(at: datetime | None, age: timedelta) -> bool:
    return at is None or clock.now() - at > age
