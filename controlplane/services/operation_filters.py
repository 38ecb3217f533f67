"""Parses the filter of a list of operations. Callers send values separated by commas."""

import re
import uuid
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import TypeVar

from controlplane.actors import ActorType
from controlplane.models import Action, OperationStatus
from controlplane.models.operation_pages import OperationFilter
from controlplane.services.errors import Invalid

# The largest number of ids in one filter. It is small, because each id is searched separately.
MAX_IDS = 20

Value = TypeVar("Value")


def filter_of(
    *,
    action: str = "",
    status: str = "",
    initiator: str = "",
    endpoint_id: str = "",
    branch_id: str = "",
    chain_id: str = "",
    since: str = "",
    until: str = "",
) -> OperationFilter:
    """Parse the filter; an empty value does not restrict it. Raises Invalid for values that no
    operation can have."""
    return OperationFilter(
        actions=_known("action", action, Action.values),
        statuses=_known("status", status, OperationStatus.values),
        initiators=_known("initiator", initiator, [str(one) for one in ActorType]),
        endpoint_ids=_ids("endpoint_id", endpoint_id, _like("ep-")),
        branch_ids=_ids("branch_id", branch_id, _like("br-")),
        chain_ids=_ids("chain_id", chain_id, uuid.UUID),
        since=time_of(since, "since") if since else None,
        until=time_of(until, "until") if until else None,
    )


def time_of(text: str, name: str) -> datetime:
    """Parse an ISO 8601 time with a time zone; the result is in UTC. Raises Invalid."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(
            f"invalid {name}: not a timestamp such as 2026-01-02T03:04:05Z", fields=[name]
        ) from None
    if time.tzinfo is None:
        raise Invalid(f"invalid {name}: the time zone is missing", fields=[name])
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise Invalid(f"invalid {name}: out of range", fields=[name]) from None


def _parts(text: str) -> list[str]:
    """The distinct parts, in the order in which they first occur."""
    return list(dict.fromkeys(part for one in text.split(",") if (part := one.strip())))


def _known(name: str, text: str, values: Collection[str]) -> list[str]:
    found = _parts(text)
    for one in found:
        if one not in values:
            raise Invalid(
                f'{name}: unknown value "{one[:64]}"; use one of: {", ".join(values)}',
                fields=[name],
            )
    return found


def _ids(name: str, text: str, read: Callable[[str], Value]) -> list[Value]:
    found = _parts(text)
    if len(found) > MAX_IDS:
        raise Invalid(f"{name}: at most {MAX_IDS} ids are allowed", fields=[name])
    try:
        return list(dict.fromkeys(read(one) for one in found))
    except ValueError as error:
        raise Invalid(f"{name}: invalid id: {str(error)[:64]}", fields=[name]) from None


def _like(prefix: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not re.fullmatch(f"{prefix}[a-z0-9-]{{1,57}}", text):
            raise ValueError(f'"{text}" is not like {prefix}quiet-heron-123456')
        return text

    return read
