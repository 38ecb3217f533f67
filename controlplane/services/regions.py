"""Regions, as callers and health checks see them."""

from controlplane.models import Region


def list_regions() -> list[Region]:
    """All of them, the default first."""
    return list(Region.objects.order_by("-default", "id"))
