"""The region that this host serves and that no other host may serve."""

from django.conf import settings

from controlplane.compute.state_directory import identity
from controlplane.models import Region


class RegionTaken(Exception):
    """Another state directory serves this host's region; the message says what to do."""


def own_region() -> Region:
    """Return this host's region. The first call creates it; the first region of all is the default.

    Raises RegionTaken if another state directory serves it: a second host would find none of the
    region's branches on its disk, and would take all computes of the first host for dead.
    """
    region, _ = Region.objects.get_or_create(
        id=settings.REGION,
        defaults={
            "name": settings.REGION,
            "host": settings.REGION_HOST,
            "port": settings.PROXY_PORT,
            "default": not Region.objects.filter(default=True).exists(),
            "state_id": identity(),
        },
    )
    if region.state_id is None and Region.objects.filter(id=region.id, state_id=None).update(
        state_id=identity()
    ):
        region.state_id = identity()
    if region.state_id != identity():
        raise RegionTaken(
            f'the region "{region.id}" is served from another state directory than '
            f"{settings.STATE_DIR}. Give this host a region of its own in PERCH_REGION or, if "
            f"the other state directory is lost, run: manage.py regions adopt {region.id}"
        )
    return region


def adopt_region(region: Region) -> None:
    """Make this state directory the one that serves the region."""
    region.state_id = identity()
    region.save(update_fields=["state_id"])
