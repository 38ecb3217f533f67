"""The response fields of operations."""

from typing import Any
from uuid import UUID

from ninja import Schema
from pydantic import Field

from controlplane import clock
from controlplane.actors import ActorType
from controlplane.api.http.fields import Moment, Timestamp, found_at, found_if_any
from controlplane.api.responses.shared import Cursor
from controlplane.models import Action, Operation, OperationStatus, RequestKind
from controlplane.services.operations import Step, steps_of


class InitiatorOut(Schema):
    type: str = Field(description="One of " + ", ".join(f"`{one}`" for one in ActorType))
    name: str = Field(
        description="The API key's name for a user or a retry; the address and role for a client"
    )
    api_key_id: int | None = Field(None, description="The key's id for a user or a retry")


class OperationOut(Schema):
    id: UUID
    chain_id: UUID
    kind: str | None = Field(
        None, description="One of " + ", ".join(f"`{one}`" for one in RequestKind.values)
    )
    title: str | None = None
    initiator: InitiatorOut
    retry_of: UUID | None = None
    project_id: str
    branch_id: str | None = None
    endpoint_id: str | None = None
    action: str = Field(description="One of " + ", ".join(f"`{one}`" for one in Action.values))
    status: str = Field(
        description="One of " + ", ".join(f"`{one}`" for one in OperationStatus.values)
    )
    error: str | None = None
    not_run_because: UUID | None = None
    superseded: bool | None = None
    failures_count: int
    retry_at: Timestamp | None = None
    created_at: Timestamp
    updated_at: Timestamp
    total_duration_ms: int

    resolve_chain_id = found_at("chain")
    resolve_retry_of = found_at("retry_of_id")
    resolve_kind = found_if_any("kind")
    resolve_title = found_if_any("title")

    @staticmethod
    def resolve_initiator(operation: Operation) -> dict[str, Any]:
        by = operation.initiator
        is_client = by.type == ActorType.CLIENT
        name = f"{by.address} {by.name}" if is_client else by.name
        return {"type": by.type, "name": name, "api_key_id": by.api_key_id}

    @staticmethod
    def resolve_total_duration_ms(operation: Operation) -> int:
        return operation.duration_ms(clock.now())


class StepOut(Schema):
    """A step of an operation. The first step begins with the request. docs/reference/operations.md
    lists the names of all steps."""

    name: str = Field(description="Such as `waiting`, `queued`, `picked_up`, `copying`, `starting`")
    started_at: Moment
    finished_at: Moment | None = Field(description="null while the step is in progress")
    duration_ms: int | None
    detail: dict[str, Any] = Field(
        description="Further facts: the `operation_id` that it waited for, `attempt`, `bytes`, "
        "the `error` that ended it, and others"
    )


class OperationWithStepsOut(OperationOut):
    steps: list[StepOut]

    @staticmethod
    def resolve_steps(operation: Operation) -> list[Step]:
        return steps_of(operation)


class OperationsOut(Schema):
    operations: list[OperationOut]


class OperationsPage(OperationsOut):
    pagination: Cursor | None = None


class OneOperation(Schema):
    operation: OperationWithStepsOut
