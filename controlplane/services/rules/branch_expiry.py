"""When a branch is deleted automatically: which times are allowed, and for which branches. The
callers hold the project's lock. `operations.rounds.expiry` deletes the branches."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane import clock
from controlplane.models import Branch
from controlplane.operations.engine.scheduling import children_of
from controlplane.services.errors import Unprocessable


@dataclass(frozen=True)
class Expiry:
    """When a branch expires: at a time, or a number of seconds from now; never if both are None."""

    at: datetime | None = None
    ttl_seconds: int | None = None


NEVER = Expiry()
# A request sends one of these.
EXPIRY_FIELDS = ("expires_at", "ttl_interval_seconds")


def set_expiry(branch: Branch, requested: Expiry) -> bool:
    """Set the branch's expiry, without saving it. Returns whether that changed the time.

    The time is rounded up to whole seconds, as responses show it, so that a client that sends it
    back changes nothing. Raises Unprocessable for a time in the past.
    """
    now = clock.now()
    end = (
        requested.at
        if requested.ttl_seconds is None
        else now + timedelta(seconds=requested.ttl_seconds)
    )
    end = end and _in_whole_seconds(end)
    if end == branch.expires_at:
        return False
    if end is not None and end <= now:
        raise Unprocessable("expires_at must be in the future", fields=EXPIRY_FIELDS)
    branch.expires_at = end
    branch.ttl_interval_seconds = requested.ttl_seconds
    if end is not None and requested.ttl_seconds is None:
        branch.ttl_interval_seconds = int((end - now).total_seconds())
    return True


def refuse_impossible_expiry(branch: Branch) -> None:
    """Raises Unprocessable if the branch expires, but cannot be deleted: it is the default branch,
    is protected or has children."""
    if branch.expires_at is None:
        return
    if branch.default:
        raise Unprocessable(
            "the default branch cannot expire; set another one first", fields=EXPIRY_FIELDS
        )
    if branch.protected:
        raise Unprocessable(
            "a protected branch cannot expire; end its protection, or clear expires_at by null",
            fields=EXPIRY_FIELDS,
        )
    if children := children_of(branch):
        raise Unprocessable(
            f"a branch with children cannot expire: {', '.join(children)}; delete them first",
            fields=EXPIRY_FIELDS,
        )


def refuse_to_depend_on(branch: Branch, becoming: str) -> None:
    """Raises Unprocessable if the branch expires. `becoming` says in words what it is to become
    that could not be deleted any more, such as "a parent"."""
    if branch.expires_at is not None:
        raise Unprocessable(
            f"the branch expires, and cannot become {becoming}: clear its expires_at first"
        )


def _in_whole_seconds(end: datetime) -> datetime:
    try:
        return end if end.microsecond == 0 else end.replace(microsecond=0) + timedelta(seconds=1)
    except OverflowError:
        raise Unprocessable("expires_at is too far in the future", fields=EXPIRY_FIELDS) from None
