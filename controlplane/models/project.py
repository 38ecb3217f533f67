"""A project: branches and endpoints of one account on one host of a region."""

from enum import StrEnum

from django.db import models

from controlplane import clock
from controlplane.models.account import Account
from controlplane.models.consumed import NOTHING, Consumed
from controlplane.models.host import Host, Region
from controlplane.models.names import new_project_id
from controlplane.models.rules import DELETED, LIVING, index

# The values that clients know. Perch only stores one for them: every compute is a process of the
# host.
DEFAULT_PROVISIONER = "k8s-pod"
PROVISIONERS = (DEFAULT_PROVISIONER, "k8s-neonvm")


class Durability(StrEnum):
    """Where a commit is on a disk before the client learns of it."""

    HOST = "host"
    # Also on a second host of the region.
    REGION = "region"


class MaskingPolicy(StrEnum):
    """What happens in a masked branch to a column that may hold text and has no masking rule."""

    REFUSE = "refuse"
    NULL = "null"
    KEEP = "keep"


class Project(models.Model):
    id = models.CharField(primary_key=True, max_length=60, default=new_project_id)
    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="projects")
    region = models.ForeignKey(Region, on_delete=models.PROTECT, related_name="projects")
    # Where its branches are: they share blocks and locks.
    host = models.ForeignKey(Host, on_delete=models.PROTECT, related_name="projects")
    name = models.CharField(max_length=256)
    pg_version = models.PositiveSmallIntegerField()
    # Of its clusters, and so of databases whose creator names no other. Earlier releases made
    # projects of the locale C, as the previous one still does during an upgrade.
    locale = models.CharField(max_length=32, default="C", db_default="C")
    # Also the default of its future endpoints.
    provisioner = models.CharField(
        max_length=32, default=DEFAULT_PROVISIONER, db_default=DEFAULT_PROVISIONER
    )
    # {pg_settings, pgbouncer_settings} and the attributes of endpoints that are `in_defaults`.
    default_endpoint_settings = models.JSONField(default=dict)
    # {quota, allowed_ips, block_public_connections, block_outbound_connections,
    # enable_logical_replication, durability, masking_policy}; see
    # `services.rules.project_settings`.
    settings = models.JSONField(default=dict)
    # The secret that masked values depend on, encrypted; "" until a branch is masked.
    masking_secret = models.TextField(default="", db_default="")
    history_retention_seconds = models.PositiveIntegerField(default=86400)
    store_passwords = models.BooleanField(default=True)
    created_at = models.DateTimeField(default=clock.now)
    updated_at = models.DateTimeField(default=clock.now)
    # Set by the request that deletes the project. The operation delete_tenant then removes the
    # data, at once or when the time is over in which the project can be recovered.
    deleted_at = models.DateTimeField(null=True)
    # Of a deleted project whose data is kept: until when it can be recovered. None once its data is
    # being removed.
    recoverable_until = models.DateTimeField(null=True)

    # What its branches consumed in the present consumption period. Not stored; set by services that
    # need it.
    consumed: Consumed = NOTHING

    class Meta:
        indexes = (
            index("projects_of_an_account", "account", "-created_at", "id", **LIVING),
            index("recoverable_projects", "deleted_at", recoverable_until__isnull=False),
            # For rounds of a host.
            index("deleted_projects", "host", "deleted_at", **DELETED),
            index(
                "projects_without_outbound",
                "host",
                deleted_at=None,
                settings__block_outbound_connections=True,
            ),
            index(
                "projects_with_second_host", "host", settings__durability=Durability.REGION.value
            ),
        )

    def __str__(self) -> str:
        return self.id

    @property
    def blocks_outbound(self) -> bool:
        """Whether its computes must not open connections to other hosts."""
        return self.settings.get("block_outbound_connections") is True

    @property
    def replicates_logically(self) -> bool:
        """Whether its computes must log what logical replication needs."""
        return self.settings.get("enable_logical_replication") is True

    @property
    def masking_policy(self) -> MaskingPolicy:
        return MaskingPolicy(self.settings.get("masking_policy", MaskingPolicy.REFUSE))

    @property
    def waits_for_second_host(self) -> bool:
        """Whether each of its commits waits until a second host has the log."""
        return bool(self.settings.get("durability") == Durability.REGION)


def host_of_project() -> "models.ForeignKey[Host | None]":
    """The host of the row's project, for indexes: the rounds of a host then read as many rows as
    the host has, whatever the region has. Triggers keep it equal to the project's, whatever a
    writer sets (migration 0047). An instance that was just created does not have it."""
    return models.ForeignKey(
        Host,
        null=True,
        editable=False,
        on_delete=models.DO_NOTHING,
        related_name="+",
        db_index=False,
        db_constraint=False,
    )
