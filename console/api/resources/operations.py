"""Operations as the management API returns them, with the steps of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from console.api.fields import JSONObject, identifier, inner, moment, number, own_id, text, whole
from console.api.resources.actors import Actor


@dataclass(frozen=True)
class Step:
    name: str
    started_at: datetime | None
    # None while the step is under way.
    finished_at: datetime | None
    # Milliseconds.
    duration_ms: int | None
    # Further facts: {"operation_id": …} of the operation that this one waits for, {"bytes": …} etc.
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
    # Why the operation failed, in words.
    error: str
    failures_count: int
    retry_at: datetime | None
    # Milliseconds; None if the server does not report it.
    total_duration_ms: int | None
    created_at: datetime | None
    updated_at: datetime | None
    # Only some servers of this API return the fields below; otherwise they are empty.
    # All operations of one request have the same chain id.
    chain_id: str
    initiator: Actor | None
    # The operation that this one repeats.
    retry_of: str
    # The earlier operation of the chain whose end kept this one from beginning.
    not_run_because: str
    # What was requested: a word for programs, and in words.
    kind: str
    title: str
    # Whether its failure needs no attention any more.
    superseded: bool
    # Since the request, the oldest first; only in the answer to a request for this one operation.
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
            not_run_because=identifier(data, "not_run_because"),
            kind=text(data, "kind"),
            title=text(data, "title"),
            superseded=data.get("superseded") is True,
            steps=_steps(data),
        )

    @property
    def can_be_steered(self) -> bool:
        """Whether the server can cancel and retry operations: servers that know chains can."""
        return bool(self.chain_id)


def _steps(data: JSONObject) -> list[Step]:
    found = data.get("steps")
    steps = found if isinstance(found, list) else []
    return [Step.read(item) for item in steps if isinstance(item, Mapping)]
