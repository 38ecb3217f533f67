"""Branches, as callers get them."""

from datetime import datetime
from typing import Any

from ninja import Schema
from pydantic import Field

from controlplane.api.fields import Timestamp
from controlplane.api.responses.catalog import DatabaseOut, RoleOut
from controlplane.api.responses.connections import ConnectionDetails
from controlplane.api.responses.endpoints import EndpointOut
from controlplane.api.responses.operations import OperationsOut
from controlplane.models import Branch


class BranchOut(Schema):
    id: str
    project_id: str
    parent_id: str | None = None
    parent_timestamp: Timestamp | None = None
    name: str
    current_state: str
    pending_state: str | None = None
    state_changed_at: Timestamp
    logical_size: int | None = None
    creation_source: str = "console"
    primary: bool
    default: bool
    protected: bool
    cpu_used_sec: int
    compute_time_seconds: int
    active_time_seconds: int
    written_data_bytes: int
    data_transfer_bytes: int
    created_at: Timestamp
    updated_at: Timestamp

    @staticmethod
    def resolve_parent_timestamp(branch: Branch) -> datetime | None:
        return branch.created_at if branch.parent_id else None

    @staticmethod
    def resolve_primary(branch: Branch) -> bool:
        return branch.default

    @staticmethod
    def resolve_cpu_used_sec(branch: Branch) -> int:
        return int(branch.consumed.compute_seconds)

    @staticmethod
    def resolve_compute_time_seconds(branch: Branch) -> int:
        return int(branch.consumed.compute_seconds)

    @staticmethod
    def resolve_active_time_seconds(branch: Branch) -> int:
        return int(branch.consumed.active_seconds)

    @staticmethod
    def resolve_written_data_bytes(branch: Branch) -> int:
        return branch.consumed.written_bytes

    @staticmethod
    def resolve_data_transfer_bytes(branch: Branch) -> int:
        return branch.consumed.transferred_bytes


class OneBranch(Schema):
    branch: BranchOut


class Branches(Schema):
    branches: list[BranchOut]
    # Clients look a branch's annotation up in it.
    annotations: dict[str, Any] = Field(default_factory=dict)


class BranchAndOperations(OneBranch, OperationsOut):
    pass


class CreatedBranch(BranchAndOperations):
    endpoints: list[EndpointOut]
    roles: list[RoleOut]
    databases: list[DatabaseOut]
    connection_uris: list[ConnectionDetails] | None = None
