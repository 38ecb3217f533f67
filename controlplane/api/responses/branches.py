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

# The data of another branch is coming in the place of its own. Not stored: its operations say so.
RESETTING = "resetting"


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
    written_data_bytes: int = 0
    data_transfer_bytes: int = 0
    created_at: Timestamp
    updated_at: Timestamp
    last_reset_at: Timestamp | None = None

    @staticmethod
    def resolve_current_state(branch: Branch) -> str:
        return RESETTING if branch.is_resetting else branch.current_state

    @staticmethod
    def resolve_parent_timestamp(branch: Branch) -> datetime | None:
        return branch.created_at if branch.parent_id else None

    @staticmethod
    def resolve_primary(branch: Branch) -> bool:
        return branch.default

    @staticmethod
    def resolve_cpu_used_sec(branch: Branch) -> int:
        return round(branch.compute_seconds)

    @staticmethod
    def resolve_compute_time_seconds(branch: Branch) -> int:
        return round(branch.compute_seconds)

    @staticmethod
    def resolve_active_time_seconds(branch: Branch) -> int:
        return round(branch.active_seconds)


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
