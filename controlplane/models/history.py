"""A branch's snapshots, and what is known of its history without asking its host: published by
the region's worker."""

from datetime import UTC, datetime

from django.db import models

from controlplane import clock
from controlplane.models.branch import Branch
from controlplane.models.names import new_snapshot_id
from controlplane.models.project import Project, host_of_project
from controlplane.models.rules import index, unique

# The `updated_at` of the chains of a branch that its endpoint has left: not all of its log may be
# copied. A trigger sets it.
LEFT = datetime.fromtimestamp(0, UTC)
# The `end_reason` of a chain whose branch got other data.
REPLACED = "replaced"


class HistoryChain(models.Model):
    """A piece of a branch's history without gaps. The files are described in
    `history.local.chain`; the worker keeps this row equal to them."""

    branch = models.ForeignKey(Branch, on_delete=models.CASCADE, related_name="history_chains")
    host = host_of_project()
    number = models.PositiveIntegerField()
    # The first and the last moment that can be recovered, and their positions in the log.
    first_at = models.DateTimeField()
    first_lsn = models.BigIntegerField()
    last_at = models.DateTimeField()
    last_lsn = models.BigIntegerField()
    # When and why the chain ended. A chain without an end grows.
    ended_at = models.DateTimeField(null=True)
    end_reason = models.CharField(max_length=64, default="", db_default="")
    # Bytes of log, and of the disk that log and bases take.
    log_bytes = models.BigIntegerField(default=0)
    disk_bytes = models.BigIntegerField(default=0, db_default=0)
    # The moments before this one are removed once they are older than the project's window; None if
    # the history has no later piece to go on with.
    spent_at = models.DateTimeField(null=True)
    # [{at, lsn, bytes}] of each base, the oldest first; the bytes as if it shared no blocks.
    bases = models.JSONField(default=list)
    # When its commits were made (`history.local.commits.Activity`): [[begin, count]] in spans of
    # `commit_span` seconds, and [{at, lsn, files}] of the last commits that removed tables' files.
    commit_span = models.PositiveIntegerField(default=60, db_default=60)
    commits = models.JSONField(default=list, db_default=[])
    removals = models.JSONField(default=list, db_default=[])
    # The log that the branch had then is in its chains: when a look at the stopped compute began
    # that has copied all of it. What a look at a running one copies does not count.
    updated_at = models.DateTimeField()
    # All that was committed until then is in the store, off the host; None if nothing is.
    stored_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (unique("history_chain_is_unique", "branch", "number"),)
        indexes = (index("spent_history_of_a_host", "host", "spent_at"),)

    def __str__(self) -> str:
        return f"{self.branch_id} {self.number}"


class FormerPassword(models.Model):
    """A password that a role of the branch had. A trigger keeps it when the role's row gets another
    one or is deleted, because a branch of a past moment has the passwords of then, and the data
    holds none (`compute.catalog.reading`)."""

    # No foreign key: the trigger also runs while a branch and its roles are deleted.
    branch_id = models.CharField(max_length=60)
    verifier = models.TextField()
    encrypted_password = models.TextField(default="")
    replaced_at = models.DateTimeField()

    class Meta:
        indexes = (index("former_passwords", "branch_id", "replaced_at"),)

    def __str__(self) -> str:
        return f"{self.branch_id} until {self.replaced_at}"


class Snapshot(models.Model):
    id = models.CharField(primary_key=True, max_length=60, default=new_snapshot_id)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="snapshots")
    # A hidden branch with the data, the roles and the databases.
    data_branch = models.OneToOneField(Branch, on_delete=models.CASCADE, related_name="snapshot")
    # None once the branch's row is removed.
    source_branch = models.ForeignKey(
        Branch, null=True, on_delete=models.SET_NULL, related_name="snapshots"
    )
    name = models.CharField(max_length=256)
    # The caller's own id for it, which its creation checks to be unique in the project, under the
    # project's lock; None if that is `id`.
    slug = models.CharField(max_length=63, null=True)
    created_at = models.DateTimeField(default=clock.now)
    # When it is deleted automatically; None for never.
    expires_at = models.DateTimeField(null=True)

    class Meta:
        indexes = (index("snapshots_by_expiry", "expires_at", expires_at__isnull=False),)

    def __str__(self) -> str:
        return self.id
