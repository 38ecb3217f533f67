"""What the answers about several resources share."""

from ninja import Schema

from controlplane.models import Account, Plan

# Where no plan limits what a branch may hold: more than any host's disk.
UNLIMITED_MEBIBYTES = 1 << 30
# Where clients know a number of their own for it.
UNLIMITED = -1


class Cursor(Schema):
    cursor: str


def subscription_type(account: Account) -> str:
    """The account's plan as one of the values that clients of this API know."""
    return {Plan.FREE: "free_v2", Plan.STANDARD: "launch"}.get(Plan(account.plan), "UNKNOWN")


def as_limit(limit: int | None) -> int:
    """A limit as clients of this API know it."""
    return UNLIMITED if limit is None else limit
