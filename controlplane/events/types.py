"""The types of events there are: what was changed, and how. Read by who writes, filters and
subscribes; a new type is a new line here."""

from enum import StrEnum


class EventType(StrEnum):
    PROJECT_CREATED = "project.created"
    PROJECT_UPDATED = "project.updated"
    PROJECT_DELETED = "project.deleted"
    # Of a deleted one, until the second of these.
    PROJECT_RECOVERED = "project.recovered"
    PROJECT_REMOVED = "project.removed"
    BRANCH_CREATED = "branch.created"
    BRANCH_UPDATED = "branch.updated"
    # Somebody asked for it; it is gone with the next one, once its data is.
    BRANCH_DELETE_REQUESTED = "branch.delete_requested"
    BRANCH_DELETED = "branch.deleted"
    BRANCH_EXPIRED = "branch.expired"
    # Likewise: somebody asked for it; another's data has taken its place with the next one.
    BRANCH_RESTORE_REQUESTED = "branch.restore_requested"
    BRANCH_RESTORED = "branch.restored"
    SNAPSHOT_CREATED = "snapshot.created"
    SNAPSHOT_UPDATED = "snapshot.updated"
    SNAPSHOT_DELETED = "snapshot.deleted"
    SNAPSHOT_EXPIRED = "snapshot.expired"
    ENDPOINT_CREATED = "endpoint.created"
    ENDPOINT_UPDATED = "endpoint.updated"
    ENDPOINT_DELETED = "endpoint.deleted"
    # Somebody asked for it; whether it came to that, the next two and the operations say.
    ENDPOINT_START_REQUESTED = "endpoint.start_requested"
    ENDPOINT_SUSPEND_REQUESTED = "endpoint.suspend_requested"
    ENDPOINT_RESTART_REQUESTED = "endpoint.restart_requested"
    ENDPOINT_ACTIVE = "endpoint.active"
    ENDPOINT_IDLE = "endpoint.idle"
    # A running endpoint is suspended for it.
    QUOTA_EXCEEDED = "quota.exceeded"
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
    # Gathered: one event for many (`events.refusals`).
    API_KEY_REFUSED = "api_key.refused"
    CONNECTION_REFUSED = "connection.refused"
    CONNECTION_NOT_ALLOWED = "connection.not_allowed"
    ACCOUNT_CREATED = "account.created"
    WEBHOOK_CREATED = "webhook.created"
    WEBHOOK_UPDATED = "webhook.updated"
    WEBHOOK_DELETED = "webhook.deleted"
    WEBHOOK_DISABLED = "webhook.disabled"
    # Sent where somebody asks to test a webhook; never in a list.
    WEBHOOK_TEST = "webhook.test"
