"""Operations as the management API tells of them, and the steps of their story."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from console.actors import Actor
from console.api_results import JSONObject, identifier, inner, moment, number, own_id, text, whole


@dataclass(frozen=True)
class Step:
    name: str
    started_at: datetime | None
    # None while it goes on.
    finished_at: datetime | None
    # Milliseconds.
    duration_ms: int | None
    # What there is to say of it: {"operation_id": …} of who is waited for, {"bytes": …} and so on.
    detail: Mapping[str, Any]

    @classmethod
    def read(cls, data: JSONObject) -> "Step":
        return cls(
            name=text(data, "name"),
            started_at=moment(data, "started_at"),
            finished_at=moment(data, "finished_at"),
            duration_ms=whole(data, "duration_ms"),
            detail=inner(data, "detail"),
        )


@dataclass(frozen=True)
class Operation:
    id: str
    project_id: str
    branch_id: str
    endpoint_id: str
    action: str
    status: str
    # Why it failed, in words.
    error: str
    failures_count: int
    retry_at: datetime | None
    # Milliseconds; None where the server does not say.
    total_duration_ms: int | None
    created_at: datetime | None
    updated_at: datetime | None
    # What follows only some servers of this API tell; "" or nothing where they don't.
    # The operations of one request share it.
    chain_id: str
    initiator: Actor | None
    # The operation whose work this one does anew.
    retry_of: str
    # From the request on, oldest first; in get-one answers only.
    steps: Sequence[Step]

    @classmethod
    def read(cls, data: JSONObject) -> "Operation":
        return cls(
            id=own_id(data),
            project_id=identifier(data, "project_id"),
            branch_id=identifier(data, "branch_id"),
            endpoint_id=identifier(data, "endpoint_id"),
            action=text(data, "action"),
            status=text(data, "status"),
            error=text(data, "error"),
            failures_count=int(number(data, "failures_count")),
            retry_at=moment(data, "retry_at"),
            total_duration_ms=whole(data, "total_duration_ms"),
            created_at=moment(data, "created_at"),
            updated_at=moment(data, "updated_at"),
            chain_id=identifier(data, "chain_id"),
            initiator=Actor.read(data.get("initiator")),
            retry_of=text(data, "retry_of"),
            steps=_steps(data),
        )

    @property
    def can_be_steered(self) -> bool:
        """Whether its server knows how to cancel and retry: it does where it knows chains."""
        return bool(self.chain_id)


def _steps(data: JSONObject) -> list[Step]:
    found = data.get("steps")
    steps = found if isinstance(found, list) else []
    return [Step.read(item) for item in steps if isinstance(item, Mapping)]
