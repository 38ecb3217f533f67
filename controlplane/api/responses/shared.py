"""What the responses of several resources share."""

from ninja import Schema

from controlplane.api.http.fields import found_at
from controlplane.models import Account, Branch, Plan, Project

# The size limit of a branch if the plan sets none: more than the disk of any host.
UNLIMITED_MEBIBYTES = 1 << 30
# The number that clients understand as "no limit".
UNLIMITED = -1


class Cursor(Schema):
    cursor: str


class FromConsumed(Schema):
    """Resolves the fields about what a branch or project has consumed in the present period."""

    @staticmethod
    def resolve_cpu_used_sec(row: Branch | Project) -> int:
        return int(row.consumed.compute_seconds)

    @staticmethod
    def resolve_compute_time_seconds(row: Branch | Project) -> int:
        return int(row.consumed.compute_seconds)

    @staticmethod
    def resolve_active_time_seconds(row: Branch | Project) -> int:
        return int(row.consumed.active_seconds)

    resolve_written_data_bytes = found_at("consumed.written_bytes")
    resolve_data_transfer_bytes = found_at("consumed.transferred_bytes")


def subscription_type(account: Account) -> str:
    """The account's plan as one of the subscription types that clients of this API know."""
    return {Plan.FREE: "free_v2", Plan.STANDARD: "launch"}.get(Plan(account.plan), "UNKNOWN")


def as_limit(limit: int | None) -> int:
    """Convert a limit for clients: -1 in place of None."""
    return UNLIMITED if limit is None else limit
