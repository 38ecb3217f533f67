"""A region: the host name its endpoints share, and the queues its worker takes jobs from."""

from datetime import datetime, timedelta

from django.db import models

from controlplane import clock

# The worker and the proxy say every other second that they are there.
SILENT_AFTER = timedelta(seconds=5)
# A worker may be started again meanwhile; after this nothing more is left for it to do.
AWAY_AFTER = timedelta(seconds=15)


class Region(models.Model):
    id = models.CharField(primary_key=True, max_length=60)
    name = models.CharField(max_length=64)
    # Endpoints are reached as `<endpoint_id>.<host>`.
    host = models.CharField(max_length=200)
    # Where its proxy listens; connection strings leave out Postgres's own 5432.
    port = models.PositiveIntegerField(default=5432)
    default = models.BooleanField(default=False)
    # Of the state directory that it is served from (`compute.state_directory.identity`): two
    # that believe to be the same would each take the other's computes for dead.
    state_id = models.CharField(max_length=36, null=True)
    # Published by the region's worker: what its host has.
    pooling_available = models.BooleanField(default=False)
    # Of its PgBouncer, as "1.25"; "" where there is none, or nobody has said.
    pooler_version = models.CharField(max_length=16, default="", db_default="")
    pg_version = models.PositiveSmallIntegerField(null=True)
    # Published by its worker: the room on its disk, and what of it is kept back.
    disk_free_bytes = models.BigIntegerField(null=True)
    disk_reserve_bytes = models.BigIntegerField(null=True)
    # Published by the region's proxy and worker while they run; /healthz reads them.
    worker_seen_at = models.DateTimeField(null=True)
    proxy_seen_at = models.DateTimeField(null=True)
    # When a worker last looked which computes run: one that is gone since counts as having run
    # until then. It outlives an outage, which the two above do not.
    computes_seen_at = models.DateTimeField(null=True)
    # Published by its worker: what does not go well there, as [{name, detail}].
    problems = models.JSONField(default=list, db_default=[])
    # Published by its worker: why computes there may connect to its host and its network; "" where
    # they may not.
    outbound_unfiltered = models.CharField(max_length=200, default="", db_default="")
    # Published by its proxy, in PEM: what clients are to trust who verify its certificates; ""
    # where the operator brings one.
    certificate_authority = models.TextField(default="", db_default="")
    # Set by `manage.py regions drain`: no new projects come here.
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
        """Whether its host has no room for new branches."""
        free, reserve = self.disk_free_bytes, self.disk_reserve_bytes
        return free is not None and reserve is not None and free < reserve

    @property
    def is_away(self) -> bool:
        """Whether nobody is there who would run an operation."""
        return _is_older(self.worker_seen_at, AWAY_AFTER)

    def silent_processes(self) -> list[str]:
        """Those of its processes that should say that they are there, and do not."""
        seen = {"worker": self.worker_seen_at, "proxy": self.proxy_seen_at}
        return [name for name, at in seen.items() if _is_older(at, SILENT_AFTER)]

    def queue(self, lane: str) -> str:
        """The Procrastinate queue of one of this region's lanes (`models.Lane`)."""
        return f"region-{self.id}-{lane}"


def _is_older(at: datetime | None, age: timedelta) -> bool:
    return at is None or clock.now() - at > age
