"""The host that this state directory serves and that no other state directory may serve."""

import time
from datetime import datetime

from django.conf import settings

from controlplane.compute.data.state_directory import identity, place
from controlplane.models import Host, Region
from controlplane.models.host import is_recent

# Seconds between looks whether another place still serves the host.
POLL_INTERVAL = 0.5


class HostTaken(Exception):
    """Another state directory, or a copy of this one, serves this host; the message says what to
    do."""


def own_host() -> Host:
    """Return this host's row. The first call creates it, and its region if that is new; the first
    region of all is the default.

    Raises HostTaken if another state directory serves it: a second one would find none of the
    host's branches on its disk, and would take all computes of the first for dead. So would a copy
    of the state directory: if this one has been moved or copied, or the machine has booted, this
    waits until the last processes that served the host have been silent for long enough, and
    raises HostTaken if they are not; also if the host cannot have its name.
    """
    if complaint := Host.complaint(settings.HOST_NAME):
        raise HostTaken(f"{complaint}. Give this host another PERCH_HOST_NAME")
    region, _ = Region.objects.get_or_create(
        id=settings.REGION,
        defaults={
            "name": settings.REGION,
            "host": settings.REGION_HOST,
            "port": settings.REGION_PORT,
            "default": not Region.objects.filter(default=True).exists(),
        },
    )
    host, _ = Host.objects.get_or_create(
        id=settings.HOST_NAME,
        defaults={
            "region": region,
            "address": settings.HOST_ADDRESS,
            "port": settings.PROXY_PORT,
            "state_id": identity(),
        },
    )
    if host.region_id != region.id:
        raise HostTaken(
            f'the host "{host.id}" belongs to the region "{host.region_id}", not to '
            f'"{region.id}". Give this host another PERCH_HOST_NAME or another PERCH_REGION'
        )
    if host.state_id is None and Host.objects.filter(id=host.id, state_id=None).update(
        state_id=identity()
    ):
        host.state_id = identity()
    if host.lost_at is not None and host.lost_state_id == identity():
        raise HostTaken(
            f'the host "{host.id}" was declared lost at {host.lost_at:%Y-%m-%d %H:%M:%S} UTC, and '
            "its projects moved to other hosts. What moved is not served from here any more. To "
            f"serve what is left, run: {settings.PROGRAM} hosts adopt {host.id}"
        )
    if host.state_id != identity():
        raise HostTaken(
            f'the host "{host.id}" is served from another state directory than '
            f"{settings.STATE_DIR}. Give this host a name of its own in PERCH_HOST_NAME or, if "
            f"the other state directory is lost, run: {settings.PROGRAM} hosts adopt {host.id}"
        )
    if host.state_place != place():
        _serve_from_here(host)
    return host


def is_own(host: Host) -> bool:
    """Whether no other state directory, and no copy of this one, has begun to serve the host."""
    return host.state_id in (None, identity()) and host.state_place in (None, place())


def refuse_if_taken(host: Host) -> None:
    """Raise HostTaken if the host, as it was just read, is served from elsewhere."""
    if not is_own(host):
        raise HostTaken(f'the host "{host.id}" is served from elsewhere now')


def adopt_host(host: Host) -> None:
    """Make this state directory the one that serves the host."""
    host.state_id, host.state_place = identity(), place()
    host.lost_at, host.lost_state_id = None, ""
    host.save(update_fields=["state_id", "state_place", "lost_at", "lost_state_id"])


def was_declared_lost() -> bool:
    """Whether this state directory served a host when that was declared lost."""
    return Host.objects.filter(lost_state_id=identity()).exists()


def _serve_from_here(host: Host) -> None:
    """Note this place as the one that serves the host. Raises HostTaken while another does."""
    before = host.state_place
    if before is not None:
        _wait_until_silent(host)
    # Of two copies that start at the same time, one finds that the row has changed.
    unchanged = Host.objects.filter(id=host.id, state_id=identity(), state_place=before)
    unchanged.update(state_place=place())
    host.refresh_from_db()
    if not is_own(host):
        raise HostTaken(_copy_message(host))


def _wait_until_silent(host: Host) -> None:
    """Return once its worker and proxy are away. Raises HostTaken at a new sign of life."""
    seen = _last_seen(host)
    while seen is not None and is_recent(seen):
        time.sleep(POLL_INTERVAL)
        host.refresh_from_db()
        if _last_seen(host) != seen:
            raise HostTaken(_copy_message(host))


def _last_seen(host: Host) -> datetime | None:
    return max(filter(None, (host.worker_seen_at, host.proxy_seen_at)), default=None)


def _copy_message(host: Host) -> str:
    return (
        f'a copy of the state directory {settings.STATE_DIR} serves the host "{host.id}". Stop it '
        "there before you start it here, or make this another host: give it a name of its own in "
        "PERCH_HOST_NAME and an empty state directory"
    )
