"""Notes in the host's row when it was last backed up, and how old the newest backup is that was
verified. /healthz reports their age."""

from datetime import datetime

from django.db.models.functions import Coalesce, Greatest

from controlplane.models import Host


def record_backup(host_id: str, at: datetime) -> None:
    """Note that there is a complete backup with the rows of the time `at`."""
    Host.objects.filter(id=host_id).update(
        backup_taken_at=at, backups_since=Coalesce("backups_since", at)
    )


def record_verification(host_id: str, at: datetime) -> bool:
    """Note that the backup with the rows of the time `at` was verified. False if the database has
    no such host."""
    # Greatest ignores NULL in Postgres.
    changed = Host.objects.filter(id=host_id).update(
        backup_verified_at=Greatest("backup_verified_at", at),
        backups_since=Coalesce("backups_since", at),
    )
    return bool(changed)
