"""A project's `settings`: what a request may set, and how that is merged with what is stored.

Stored as JSON, {quota: {name: number}, allowed_ips: {ips, protected_branches_only},
block_public_connections, block_outbound_connections, enable_logical_replication, durability,
masking_policy}. A key that was never set is absent. The proxy and the worker's rounds read the
stored JSON.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.models import Durability, Host, MaskingPolicy
from controlplane.services.errors import refused_field

MAX_ALLOWED_IPS = 200
# The settings that are stored as they were sent.
PLAIN = (
    *("block_public_connections", "block_outbound_connections"),
    *("enable_logical_replication", "durability", "masking_policy"),
)


@dataclass(frozen=True, kw_only=True)
class AllowedIps:
    # In the format of `address_ranges.parse_range`. If it is empty, all addresses are allowed; None
    # if it was not sent: the stored list stays.
    ips: tuple[str, ...] | None
    # None if it was not sent: a list that was sent is then for all branches.
    protected_branches_only: bool | None = None

    def over(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """The value to store after a request sent this."""
        value = {"ips": [], "protected_branches_only": False, **stored}
        if self.ips is not None:
            value = {"ips": list(self.ips), "protected_branches_only": False}
        if self.protected_branches_only is not None:
            value["protected_branches_only"] = self.protected_branches_only
        return value


@dataclass(frozen=True, kw_only=True)
class ProjectSettings:
    """What a request asks of a project's settings; None for what was not sent."""

    # By name, in seconds or bytes; 0 means no limit. Quotas that are not named do not change.
    quota: Mapping[str, int] | None = None
    allowed_ips: AllowedIps | None = None
    block_public_connections: bool | None = None
    block_outbound_connections: bool | None = None
    enable_logical_replication: bool | None = None
    durability: Durability | None = None
    masking_policy: MaskingPolicy | None = None


def merged_project_settings(
    stored: Mapping[str, Any], sent: ProjectSettings, *, host: Host
) -> dict[str, Any]:
    """The settings to store after a request `sent` these, for a project on the host. Raises
    Unprocessable."""
    if sent.block_outbound_connections and host.outbound_unfiltered:
        raise refused_field(
            "settings.block_outbound_connections",
            f"its host cannot keep computes from connecting: {host.outbound_unfiltered}",
        )
    if sent.enable_logical_replication is False and stored.get("enable_logical_replication"):
        raise refused_field(
            "settings.enable_logical_replication",
            "logical replication cannot be disabled once it has been enabled; a new project is "
            "without it",
        )
    if sent.durability == Durability.REGION and stored.get("durability") != Durability.REGION:
        _refuse_without_second_host(host)
    merged = dict(stored)
    for name in PLAIN:
        if (value := getattr(sent, name)) is not None:
            merged[name] = value
    if sent.quota is not None:
        merged["quota"] = {**stored.get("quota", {}), **sent.quota}
    if sent.allowed_ips is not None:
        merged["allowed_ips"] = sent.allowed_ips.over(stored.get("allowed_ips", {}))
    return merged


def check_durability(settings: Mapping[str, Any], history_retention_seconds: int) -> None:
    """Raise Unprocessable if commits are to wait for a second host, which only has the newest log,
    and the project keeps no history, so that the store has nothing that the log could go on with.
    """
    if settings.get("durability") == Durability.REGION and history_retention_seconds == 0:
        raise refused_field(
            "settings.durability",
            'a project with the durability "region" must keep history: with '
            "history_retention_seconds of 0, nothing of it is copied off its host",
        )


def _refuse_without_second_host(host: Host) -> None:
    others = Host.objects.filter(region=host.region_id, lost_at=None).exclude(id=host.id)
    if not others.exists():
        raise refused_field(
            "settings.durability",
            f'the region "{host.region_id}" has only one host, so commits cannot wait for another',
        )
    if not host.history_store or not any(one.history_store for one in others):
        raise refused_field(
            "settings.durability",
            f'the hosts of the region "{host.region_id}" copy no history to a store, which a '
            "restore on another host needs; ask the operator to set PERCH_HISTORY_STORE",
        )
