"""A region, where callers place projects, and its hosts: machines with a state directory, a
worker, a proxy and the computes of the projects that live on them."""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db import models

from controlplane import clock
from controlplane.models.rules import unique

if TYPE_CHECKING:
    from controlplane.models.project import Project


class Region(models.Model):
    id = models.CharField(primary_key=True, max_length=60)
    name = models.CharField(max_length=64)
    # Its address, published by its workers. It leads to the proxy of any of its hosts: each passes
    # clients on to the host of their endpoint. Endpoints are reached as `<endpoint_id>.<host>`.
    # Connection strings leave the port out if it is 5432.
    host = models.CharField(max_length=200)
    port = models.PositiveIntegerField(default=5432)
    default = models.BooleanField(default=False)

    class Meta:
        constraints = (unique("one_default_region", "default", default=True),)

    def __str__(self) -> str:
        return self.id


# The worker and the proxy write a sign of life every two seconds.
SILENT_AFTER = timedelta(seconds=5)
# A worker may be restarted within this time. After it, its host counts as away, and no new
# operations are accepted for it.
AWAY_AFTER = timedelta(seconds=15)
PROCESSES = ("worker", "proxy")
# Bytes of a host's name: the names of its queues, which have it, must fit into a channel's.
MAX_HOST_NAME_BYTES = 36


class Host(models.Model):
    # Its name, which is unique among the hosts of all regions. The only host of a region usually
    # has the region's name.
    id = models.CharField(primary_key=True, max_length=60)
    region = models.ForeignKey(Region, on_delete=models.CASCADE, related_name="hosts")
    # The host name and port of its own proxy. Endpoints are reached as `<endpoint_id>.<address>`
    # too, which saves the way through another host's proxy.
    address = models.CharField(max_length=200)
    port = models.PositiveIntegerField(default=5432)
    # The id of the state directory that serves the host (`compute.data.state_directory.identity`).
    # If two state directories served the same host, each would treat the other's computes as dead.
    state_id = models.CharField(max_length=36, null=True)
    # Which machine, since its last boot, and which directory on it that is
    # (`compute.data.state_directory.place`). A copy of the state directory has the same id, but
    # another place.
    state_place = models.CharField(max_length=100, null=True)
    # When it was declared lost (`fleet.lost_hosts`), and the state directory that served it
    # then. That one is shut out by another `state_id`, and has the host's copies in the store.
    lost_at = models.DateTimeField(null=True)
    lost_state_id = models.CharField(max_length=36, default="", db_default="")
    # Published by its worker: the version of Perch that it runs; "" before it has started.
    version = models.CharField(max_length=40, default="", db_default="")
    # Published by its worker: its version again. A worker that leaves it as it was is of a release
    # that takes jobs from Procrastinate's tables. (The next release publishes it too, for APIs of
    # this one, and no longer reads it.)
    jobs_version = models.CharField(max_length=40, default="", db_default="")
    # Published by its worker: whether PgBouncer is installed.
    pooling_available = models.BooleanField(default=False, db_default=False)
    # The version of its PgBouncer, as "1.25"; "" if there is none, or the worker has not published
    # it yet.
    pooler_version = models.CharField(max_length=16, default="", db_default="")
    # Published by its worker: the major version of Postgres that new projects get by default, and
    # all that it has, in order.
    pg_version = models.PositiveSmallIntegerField(null=True)
    pg_versions = models.JSONField(default=list, db_default=models.Value([], models.JSONField()))
    # Published by its worker: its processors, how many of them have been busy in the last minute
    # on average, and its memory. New projects are placed by these and by the disk.
    cpus = models.PositiveIntegerField(null=True)
    cpu_load = models.FloatField(null=True)
    memory_bytes = models.BigIntegerField(null=True)
    # Published by its worker: the size of its disk, the free bytes on it, and how many branches
    # must leave free.
    disk_bytes = models.BigIntegerField(null=True)
    disk_free_bytes = models.BigIntegerField(null=True)
    disk_reserve_bytes = models.BigIntegerField(null=True)
    # Signs of life, written by its worker and proxy while they run; /healthz reads them.
    worker_seen_at = models.DateTimeField(null=True)
    proxy_seen_at = models.DateTimeField(null=True)
    # When a worker last checked which computes run. A compute that has ended since then counts as
    # having run until then. It keeps its value during an outage of the worker, unlike the two
    # above.
    computes_seen_at = models.DateTimeField(null=True)
    # Published by its worker: its problems, as [{name, detail}].
    problems = models.JSONField(default=list, db_default=models.Value([], models.JSONField()))
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
    # Published by its worker: why computes there can connect to it and its network; "" if they
    # cannot.
    outbound_unfiltered = models.CharField(max_length=200, default="", db_default="")
    # Published by its proxy, in PEM: the certificate authority that clients must trust to verify
    # its certificate; "" if the operator provides the certificate.
    certificate_authority = models.TextField(default="", db_default="")
    # Published by its proxy: where the proxies of the region's other hosts connect to it, and the
    # certificate, in PEM, by which it and they recognize each other (`proxy.wire.peer_tls`). A host
    # without a certificate has not started with a version that passes clients on.
    peer_address = models.CharField(max_length=253, default="", db_default="")
    peer_port = models.PositiveIntegerField(default=5432, db_default=5432)
    peer_certificate = models.TextField(default="", db_default="")
    # Set by `manage.py hosts drain`: it gets no new projects.
    draining = models.BooleanField(default=False, db_default=False)

    class Meta:
        constraints = (
            # A project refers to both, so that its host is always one of its region's.
            unique("host_and_region", "id", "region"),
        )

    def __str__(self) -> str:
        return self.id

    @property
    def is_full(self) -> bool:
        """Whether its disk has no room for new branches."""
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

    @staticmethod
    def complaint(name: str) -> str:
        """Why no host can have the name; "" if one can."""
        if len(name.encode()) <= MAX_HOST_NAME_BYTES:
            return ""
        return f'the name "{name}" is too long: a host\'s has at most {MAX_HOST_NAME_BYTES} bytes'

    def queue(self, lane: str) -> str:
        """The queue of the jobs of one of its lanes (`models.Lane`)."""
        return f"region-{self.id}-{lane}"


class HostInvitation(models.Model):
    """What `manage.py hosts add` has prepared for a new machine (`fleet.invitations`)."""

    # The SHA-256 of the name by which it is taken, in hexadecimal.
    digest = models.CharField(primary_key=True, max_length=64)
    # Encrypted with a key that is not in the database.
    content = models.TextField()
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.digest


class PostgresSettings(models.Model):
    host = models.ForeignKey(
        Host, on_delete=models.CASCADE, related_name="postgres_settings", db_index=False
    )
    major = models.PositiveSmallIntegerField(db_default=0)
    # As "18.1".
    version = models.CharField(max_length=32)
    # {name: {vartype, unit, min, max, values, default, about}}; see
    # `compute.settings.postgres_settings`.
    known = models.JSONField()

    class Meta:
        constraints = (unique("settings_of_a_major", "host", "major"),)

    def __str__(self) -> str:
        return f"{self.host_id}: {self.version}"

    @classmethod
    def known_to(cls, project: "Project") -> dict[str, Any]:
        """`known` of the project's Postgres; empty if its host's worker has not started yet."""
        row = cls.objects.filter(host=project.host_id, major=project.pg_version).first()
        return dict(row.known) if row else {}


def is_recent(at: datetime | None) -> bool:
    """Whether a process that has written a sign of life then may still run."""
    return not _is_older(at, AWAY_AFTER)


def _is_older(at: datetime | None, age: timedelta) -> bool:
    return at is None or clock.now() - at > age
