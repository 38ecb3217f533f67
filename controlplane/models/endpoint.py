"""A compute endpoint: what clients connect to (specification, sections 2.1 and 3.1)."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import models

from controlplane import clock
from controlplane.models.branch import Branch
from controlplane.models.names import new_endpoint_id
from controlplane.models.project import DEFAULT_PROVISIONER, Project


class EndpointState(models.TextChoices):
    INIT = "init", "Just created; its first start is not over"
    ACTIVE = "active", "Its Postgres runs"
    IDLE = "idle", "Suspended: no process, no memory"


class EndpointType(models.TextChoices):
    READ_WRITE = "read_write", "Reads and writes"


class PoolerMode(models.TextChoices):
    TRANSACTION = "transaction", "A server connection for each transaction"


@dataclass(frozen=True)
class Configuration:
    """The attributes of an endpoint that its compute must apply. A change of any of them takes an
    operation."""

    # {pg_settings: {name: value}, pgbouncer_settings: {name: value}}
    settings: dict[str, Any]
    autoscaling_limit_min_cu: float
    autoscaling_limit_max_cu: float
    pooler_enabled: bool


class Endpoint(models.Model):
    id = models.CharField(primary_key=True, max_length=60, default=new_endpoint_id)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="endpoints")
    branch = models.ForeignKey(Branch, on_delete=models.PROTECT, related_name="endpoints")
    name = models.CharField(max_length=64, null=True)
    type = models.CharField(
        max_length=16, choices=EndpointType.choices, default=EndpointType.READ_WRITE
    )
    # Compute units: 1 is 1 vCPU and 4 GB of memory.
    autoscaling_limit_min_cu = models.FloatField(default=0.25)
    autoscaling_limit_max_cu = models.FloatField(default=1)
    # {pg_settings: {name: value}, pgbouncer_settings: {name: value}}
    settings = models.JSONField(default=dict)
    pooler_enabled = models.BooleanField(default=False)
    pooler_mode = models.CharField(
        max_length=16, choices=PoolerMode.choices, default=PoolerMode.TRANSACTION
    )
    disabled = models.BooleanField(default=False)
    passwordless_access = models.BooleanField(default=True)
    provisioner = models.CharField(max_length=32, default=DEFAULT_PROVISIONER)
    # Idle seconds before the endpoint is suspended; 0: the server's default; -1: never.
    suspend_timeout_seconds = models.IntegerField(default=0)
    current_state = models.CharField(
        max_length=8, choices=EndpointState.choices, default=EndpointState.INIT
    )
    last_active = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    suspended_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(default=clock.now)
    updated_at = models.DateTimeField(default=clock.now)
    deleted_at = models.DateTimeField(null=True)

    # The state that its unfinished operations lead to. Not stored, because it follows from them;
    # set by services that need it. None if nothing is pending or no service has set it.
    pending_state: EndpointState | None = None

    class Meta:
        constraints = (
            models.UniqueConstraint(
                name="one_endpoint_per_branch",
                fields=["branch"],
                condition=models.Q(deleted_at=None),
            ),
            models.CheckConstraint(
                name="endpoint_state_is_known",
                condition=models.Q(current_state__in=EndpointState.values),
            ),
            models.CheckConstraint(
                name="endpoint_type_is_known", condition=models.Q(type__in=EndpointType.values)
            ),
            models.CheckConstraint(
                name="endpoint_pooler_mode_is_known",
                condition=models.Q(pooler_mode__in=PoolerMode.values),
            ),
            models.CheckConstraint(
                name="endpoint_limits_are_ordered",
                condition=models.Q(
                    autoscaling_limit_min_cu__gte=0.25,
                    autoscaling_limit_max_cu__gte=models.F("autoscaling_limit_min_cu"),
                ),
            ),
        )
        indexes = (
            models.Index(
                name="endpoints_of_a_project",
                fields=["project", "created_at"],
                condition=models.Q(deleted_at=None),
            ),
            # For the rounds, which read the active endpoints: there may be a thousand idle ones for
            # each active one.
            models.Index(
                name="active_endpoints",
                fields=["project"],
                condition=models.Q(deleted_at=None, current_state="active"),
            ),
        )

    def __str__(self) -> str:
        return self.id

    @property
    def configuration(self) -> Configuration:
        return Configuration(
            settings=self.settings,
            autoscaling_limit_min_cu=self.autoscaling_limit_min_cu,
            autoscaling_limit_max_cu=self.autoscaling_limit_max_cu,
            pooler_enabled=self.pooler_enabled,
        )

    def go_back_to(self, configuration: Configuration) -> None:
        """Restore an earlier configuration, and save it."""
        self.settings = configuration.settings
        self.autoscaling_limit_min_cu = configuration.autoscaling_limit_min_cu
        self.autoscaling_limit_max_cu = configuration.autoscaling_limit_max_cu
        self.pooler_enabled = configuration.pooler_enabled
        self.save(
            update_fields=[
                "settings",
                "autoscaling_limit_min_cu",
                "autoscaling_limit_max_cu",
                "pooler_enabled",
            ]
        )

    def enter(self, state: EndpointState, *, now: datetime) -> None:
        """Change `current_state` and the times that depend on it, and save them.

        Only this method changes `current_state` of an existing endpoint. It sets `started_at` and
        `suspended_at`, between which a trigger counts active time for the branch (`usage`). `now`
        is when the state changed, which may be earlier than the present time. The caller holds the
        project's lock.
        """
        if state == self.current_state:
            return
        if state == EndpointState.ACTIVE:
            self.started_at = self.last_active = now
        elif self.current_state == EndpointState.ACTIVE and self.started_at:
            self.suspended_at = now
        self.current_state = state
        self.updated_at = max(now, self.updated_at)
        self.save(
            update_fields=[
                "current_state",
                "started_at",
                "suspended_at",
                "last_active",
                "updated_at",
            ]
        )
