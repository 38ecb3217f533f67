"""The table of the types of events: the label, the icon and the tone of each."""

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class EventType:
    value: str
    label: str
    # The icon. Its shape differs too, so that nothing depends on colour alone.
    shape: str = "done"
    tone: str = "quiet"


MADE, GONE = ("plus", "good"), ("minus", "quiet")
BAD = ("cross", "bad")

# The types by group, in the order in which they are offered.
GROUPS: dict[str, tuple[EventType, ...]] = {
    "Operations": (
        EventType("operation.finished", "Operation finished", "check", "good"),
        EventType("operation.failed", "Operation failed", *BAD),
        EventType("operation.cancelled", "Operation cancelled", "cancelled", "quiet"),
        EventType("operation.cancel_requested", "Cancel requested"),
        EventType("operation.retried", "Operation retried"),
    ),
    "Endpoints": (
        EventType("endpoint.created", "Endpoint created", *MADE),
        EventType("endpoint.updated", "Endpoint changed"),
        EventType("endpoint.deleted", "Endpoint deleted", *GONE),
        EventType("endpoint.start_requested", "Start requested"),
        EventType("endpoint.suspend_requested", "Suspend requested"),
        EventType("endpoint.restart_requested", "Restart requested"),
        EventType("endpoint.active", "Endpoint active", "awake", "good"),
        EventType("endpoint.idle", "Endpoint idle", "asleep", "calm"),
        EventType("quota.exceeded", "Quota exceeded", *BAD),
    ),
    "Branches": (
        EventType("branch.created", "Branch created", *MADE),
        EventType("branch.updated", "Branch changed"),
        EventType("branch.delete_requested", "Deletion requested"),
        EventType("branch.deleted", "Branch deleted", *GONE),
        EventType("branch.expired", "Branch expired", *GONE),
        EventType("branch.restore_requested", "Restore or reset requested"),
        EventType("snapshot.created", "Snapshot created", *MADE),
        EventType("snapshot.updated", "Snapshot changed"),
        EventType("snapshot.deleted", "Snapshot deleted", *GONE),
        EventType("snapshot.expired", "Snapshot expired", *GONE),
        EventType("history.gap", "Gap in the history", *BAD),
        EventType("history.trimmed", "History trimmed", *BAD),
        EventType("history.lost", "Restored after its host was lost", *BAD),
        EventType("branch.restored", "Branch restored or reset", "check", "good"),
        EventType("durability.reduced", "Commits are on one host only", *BAD),
        EventType("durability.restored", "Commits are on two hosts again", "check", "good"),
        EventType("history.copy_behind", "History copy behind", *BAD),
        EventType("history.copy_caught_up", "History copy caught up", "check", "good"),
    ),
    "Projects": (
        EventType("project.created", "Project created", *MADE),
        EventType("project.updated", "Project changed"),
        EventType("project.host_lost", "Host lost", *BAD),
        EventType("project.deleted", "Project deleted", *GONE),
        EventType("project.recovered", "Project recovered", *MADE),
        EventType("project.removed", "Deleted project removed", *GONE),
    ),
    "Roles and databases": (
        EventType("catalog.limit_exceeded", "More by SQL than allowed", *BAD),
        EventType("role.created", "Role created", *MADE),
        EventType("role.updated", "Role changed"),
        EventType("role.deleted", "Role deleted", *GONE),
        EventType("role.password_reset", "Password reset"),
        EventType("role.password_revealed", "Password read"),
        EventType("database.created", "Database created", *MADE),
        EventType("database.updated", "Database changed"),
        EventType("database.deleted", "Database deleted", *GONE),
    ),
    "Keys and sign-in": (
        EventType("api_key.created", "API key created", *MADE),
        EventType("api_key.revoked", "API key revoked", *GONE),
        EventType("api_key.refused", "API key refused", *BAD),
        EventType("connection.refused", "Connection refused", *BAD),
        EventType("connection.not_allowed", "Address not allowed", *BAD),
        EventType("account.created", "Account created", *MADE),
        EventType("account.updated", "Account changed"),
        EventType("account.disabled", "Account disabled", *BAD),
        EventType("account.enabled", "Account enabled", "check", "good"),
        EventType("account.deleted", "Account deleted", *GONE),
        EventType("account.recovered", "Account recovered", *MADE),
    ),
    "Webhooks": (
        EventType("webhook.created", "Webhook created", *MADE),
        EventType("webhook.updated", "Webhook changed"),
        EventType("webhook.deleted", "Webhook deleted", *GONE),
        EventType("webhook.disabled", "Webhook disabled", *BAD),
    ),
}

# Sent only when a user asks for it. It is not offered as a choice.
TEST = EventType("webhook.test", "Test")

_TYPES = {kind.value: kind for kinds in (*GROUPS.values(), (TEST,)) for kind in kinds}


def event_type(value: str) -> EventType:
    known = _TYPES.get(value)
    return known or EventType(value, value.replace("_", " ").replace(".", ": ").capitalize())


@cache
def type_choices() -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the choices by group. The first of each stands for the whole group, with the types
    separated by commas."""
    return [
        (
            group,
            [
                (",".join(kind.value for kind in kinds), f"All {group.lower()}"),
                *((kind.value, kind.label) for kind in kinds),
            ],
        )
        for group, kinds in GROUPS.items()
    ]
