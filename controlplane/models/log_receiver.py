"""Which host receives the log of a branch as it is written, for a project whose commits wait for a
second host (`durability` in its settings)."""

import secrets

from django.db import models

from controlplane import clock
from controlplane.models.branch import Branch
from controlplane.models.host import Host


def new_receiver_id() -> str:
    return f"lr-{secrets.token_hex(8)}"


class LogReceiver(models.Model):
    """One reception of a branch's log, which begins with a directory of its own on the second host.
    The directory is removed when the row is gone."""

    # Also the `application_name` of its connection to the compute.
    id = models.CharField(primary_key=True, max_length=60, default=new_receiver_id)
    branch = models.ForeignKey(Branch, on_delete=models.CASCADE, related_name="log_receivers")
    # The second host.
    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="log_receivers")
    created_at = models.DateTimeField(default=clock.now)
    # Since when each commit waits for it; None until then.
    attached_at = models.DateTimeField(null=True)
    # Since when commits have not waited for it, although the compute may run; None if they do.
    lost_at = models.DateTimeField(null=True)
    # The store has the log up to here, with a base copy.
    stored_lsn = models.BigIntegerField(default=0, db_default=0)

    def __str__(self) -> str:
        return self.id
