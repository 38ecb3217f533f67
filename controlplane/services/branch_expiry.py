"""When a branch is to go by itself: what may be asked for, and of which branches. The callers hold
the project's lock; that they go is the work of `operations.expiry`."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane import clock
from controlplane.models import Branch
from controlplane.operations.branch_deletion import children_of
from controlplane.services.errors import Unprocessable


@dataclass(frozen=True)
class Expiry:
    """When a branch is to go: at a moment, or so many seconds from now; never, without both."""

    at: datetime | None = None
    ttl_seconds: int | None = None


NEVER = Expiry()


def set_expiry(branch: Branch, asked: Expiry) -> bool:
    """Give the branch the end that was asked for, unsaved as yet; whether it had another one.

    It is rounded up to whole seconds, as it is answered, so that what was answered may be sent
    back and changes nothing. Raises Unprocessable for one in the past.
    """
    now = clock.now()
    end = asked.at if asked.ttl_seconds is None else now + timedelta(seconds=asked.ttl_seconds)
    end = end and _in_whole_seconds(end)
    if end == branch.expires_at:
        return False
    if end is not None and end <= now:
        raise Unprocessable("expires_at must be in the future")
    branch.expires_at = end
    branch.ttl_interval_seconds = asked.ttl_seconds
    if end is not None and asked.ttl_seconds is None:
        branch.ttl_interval_seconds = int((end - now).total_seconds())
    return True


def refuse_impossible_expiry(branch: Branch) -> None:
    """Raises Unprocessable where the branch has an end, and could not be deleted then."""
    if branch.expires_at is None:
        return
    if branch.default:
        raise Unprocessable("the default branch cannot expire; set another one first")
    if branch.protected:
        raise Unprocessable(
            "a protected branch cannot expire; end its protection, or clear expires_at by null"
        )
    if children := children_of(branch):
        raise Unprocessable(
            f"a branch with children cannot expire: {', '.join(children)}; delete them first"
        )


def refuse_to_depend_on(branch: Branch, becoming: str) -> None:
    """Raises Unprocessable where the branch is to become, in words, what could not go any more,
    and has an end."""
    if branch.expires_at is not None:
        raise Unprocessable(
            f"the branch expires, and cannot become {becoming}: clear its expires_at first"
        )


def _in_whole_seconds(end: datetime) -> datetime:
    try:
        return end if end.microsecond == 0 else end.replace(microsecond=0) + timedelta(seconds=1)
    except OverflowError:
        raise Unprocessable("expires_at is too far in the future") from None
