"""The problems of a host, as /healthz and /status report them: what its worker and its proxy have
published, and what the ages of its backups say."""

from datetime import datetime, timedelta

from django.conf import settings

from controlplane import clock
from controlplane.models import Host


def problems_of(host: Host) -> list[dict[str, str]]:
    """The present problems, as {name, detail}. What a process published is out of date once its
    sign of life is."""
    silent = host.silent_processes()
    found = [] if "worker" in silent else list(host.problems)
    found += [] if "proxy" in silent else host.proxy_problems
    return found + _of_backups(host)


def _of_backups(host: Host) -> list[dict[str, str]]:
    """Reported from the first backup on: a service whose operator never made one is none the worse
    for its age."""
    if host.backups_since is None:
        return []
    taken = host.backup_taken_at or host.backups_since
    verified = host.backup_verified_at or host.backups_since
    found = []
    if _is_older(taken, timedelta(hours=settings.BACKUP_HOURS)):
        detail = f"the last complete backup is of {taken:%Y-%m-%d %H:%M} UTC"
        found.append({"name": "backup_old", "detail": detail})
    if _is_older(verified, timedelta(days=settings.BACKUP_VERIFIED_DAYS)):
        detail = f"no backup since {verified:%Y-%m-%d} was verified (`backup --verify`)"
        found.append({"name": "backup_unverified", "detail": detail})
    return found


def _is_older(at: datetime, age: timedelta) -> bool:
    """False if the age is 0: the operator wants no such problem."""
    return age > timedelta(0) and clock.now() - at > age
