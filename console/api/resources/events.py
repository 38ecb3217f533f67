"""Events as the management API returns them: who did what, and when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from console.api.fields import (
    IDENTIFIER,
    JSONObject,
    identifier,
    inner,
    moment,
    own_id,
    text,
    texts,
    whole,
)
from console.api.resources.actors import Actor


@dataclass(frozen=True)
class OfOperation:
    """The operation that an event is about."""

    action: str
    # Why it failed or was cancelled; "" if it was not.
    error: str
    # Milliseconds; None if it has not ended, or if the server does not report it.
    duration_ms: int | None = None

    @classmethod
    def read(cls, data: JSONObject) -> "OfOperation | None":
        """Read it from the event's own fields; None if the event is about no operation."""
        operation = inner(data, "operation")
        if not operation:
            return None
        return cls(
            action=text(operation, "action"),
            error=text(operation, "error"),
            duration_ms=whole(operation, "duration_ms"),
        )


@dataclass(frozen=True)
class Event:
    id: str
    type: str
    # One sentence, for people.
    summary: str
    actor: Actor | None
    at: datetime | None
    project_id: str
    branch_id: str
    endpoint_id: str
    operation_ids: Sequence[str]
    # By field, {"from": …, "to": …}.
    changes: Mapping[str, Any]
    operation: OfOperation | None

    @classmethod
    def read(cls, data: JSONObject) -> "Event":
        return cls(
            id=own_id(data),
            type=text(data, "type"),
            summary=text(data, "summary"),
            actor=Actor.read(data.get("actor")),
            at=moment(data, "at"),
            project_id=identifier(data, "project_id"),
            branch_id=identifier(data, "branch_id"),
            endpoint_id=identifier(data, "endpoint_id"),
            operation_ids=[
                one for one in texts(data, "operation_ids") if IDENTIFIER.fullmatch(one)
            ],
            changes=inner(data, "changes"),
            operation=OfOperation.read(data),
        )
