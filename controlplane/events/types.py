"""The types of events. The code that writes and filters events, and that of webhooks, uses them. A
new type needs only a line here."""

from enum import StrEnum


class EventType(StrEnum):
    PROJECT_CREATED = "project.created"
    PROJECT_UPDATED = "project.updated"
    PROJECT_DELETED = "project.deleted"
    # Both concern deleted projects. A removed project can no longer be recovered.
    PROJECT_RECOVERED = "project.recovered"
    PROJECT_REMOVED = "project.removed"
    # Its host was declared lost: it lives on another one, where its branches are restored.
    PROJECT_HOST_LOST = "project.host_lost"
    BRANCH_CREATED = "branch.created"
    BRANCH_UPDATED = "branch.updated"
    # A caller asked to delete the branch. BRANCH_DELETED follows once its data is deleted.
    BRANCH_DELETE_REQUESTED = "branch.delete_requested"
    BRANCH_DELETED = "branch.deleted"
    BRANCH_EXPIRED = "branch.expired"
    # A caller asked to restore the branch. BRANCH_RESTORED follows once its data is replaced.
    BRANCH_RESTORE_REQUESTED = "branch.restore_requested"
    BRANCH_RESTORED = "branch.restored"
    # Log was lost, so some of the branch's past cannot be recovered.
    HISTORY_GAP = "history.gap"
    # The oldest history was removed before its time: the disk is nearly full, or the branch's size
    # limit leaves no more for it.
    HISTORY_TRIMMED = "history.trimmed"
    # The copy of its history in the store is behind, or is no longer.
    HISTORY_COPY_BEHIND = "history.copy_behind"
    HISTORY_COPY_CAUGHT_UP = "history.copy_caught_up"
    # The branch was restored from the store after its host was lost.
    HISTORY_LOST = "history.lost"
    # Commits no longer wait for a second host, or wait again.
    DURABILITY_REDUCED = "durability.reduced"
    DURABILITY_RESTORED = "durability.restored"
    SNAPSHOT_CREATED = "snapshot.created"
    SNAPSHOT_UPDATED = "snapshot.updated"
    SNAPSHOT_DELETED = "snapshot.deleted"
    SNAPSHOT_EXPIRED = "snapshot.expired"
    ENDPOINT_CREATED = "endpoint.created"
    ENDPOINT_UPDATED = "endpoint.updated"
    ENDPOINT_DELETED = "endpoint.deleted"
    # A caller asked for it. ENDPOINT_ACTIVE, ENDPOINT_IDLE and the events of operations tell
    # whether it happened.
    ENDPOINT_START_REQUESTED = "endpoint.start_requested"
    ENDPOINT_SUSPEND_REQUESTED = "endpoint.suspend_requested"
    ENDPOINT_RESTART_REQUESTED = "endpoint.restart_requested"
    ENDPOINT_ACTIVE = "endpoint.active"
    ENDPOINT_IDLE = "endpoint.idle"
    # A running endpoint is suspended because its project has used up a quota.
    QUOTA_EXCEEDED = "quota.exceeded"
    # SQL has made more roles or databases than the branch may have.
    CATALOG_LIMIT_EXCEEDED = "catalog.limit_exceeded"
    ROLE_CREATED = "role.created"
    ROLE_UPDATED = "role.updated"
    ROLE_DELETED = "role.deleted"
    ROLE_PASSWORD_RESET = "role.password_reset"  # noqa: S105 # a name
    ROLE_PASSWORD_REVEALED = "role.password_revealed"  # noqa: S105
    DATABASE_CREATED = "database.created"
    DATABASE_UPDATED = "database.updated"
    DATABASE_DELETED = "database.deleted"
    OPERATION_FINISHED = "operation.finished"
    OPERATION_FAILED = "operation.failed"
    OPERATION_CANCELLED = "operation.cancelled"
    OPERATION_CANCEL_REQUESTED = "operation.cancel_requested"
    OPERATION_RETRIED = "operation.retried"
    API_KEY_CREATED = "api_key.created"
    API_KEY_REVOKED = "api_key.revoked"
    # One event may stand for many refusals (`events.refusals`).
    API_KEY_REFUSED = "api_key.refused"
    CONNECTION_REFUSED = "connection.refused"
    CONNECTION_NOT_ALLOWED = "connection.not_allowed"
    # Of these, operators cause all.
    ACCOUNT_CREATED = "account.created"
    ACCOUNT_UPDATED = "account.updated"
    ACCOUNT_DISABLED = "account.disabled"
    ACCOUNT_ENABLED = "account.enabled"
    ACCOUNT_DELETED = "account.deleted"
    ACCOUNT_RECOVERED = "account.recovered"
    WEBHOOK_CREATED = "webhook.created"
    WEBHOOK_UPDATED = "webhook.updated"
    WEBHOOK_DELETED = "webhook.deleted"
    WEBHOOK_DISABLED = "webhook.disabled"
    # Sent only to test a webhook at a caller's request; lists never contain it.
    WEBHOOK_TEST = "webhook.test"
