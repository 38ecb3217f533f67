"""The response fields of branches."""

from collections.abc import Iterable
from datetime import datetime
from typing import Literal, Self

from ninja import Schema

from controlplane.api.http.fields import NamedMoment, Timestamp
from controlplane.api.responses.catalog import ConnectionDetails, DatabaseOut, RoleOut
from controlplane.api.responses.endpoints import EndpointOut
from controlplane.api.responses.operations import OperationsOut
from controlplane.api.responses.shared import FromConsumed
from controlplane.models import Branch
from controlplane.services.rules.history import lsn_text

# The state of a branch while the data of another branch replaces its own. It is not stored, but
# derived from the branch's operations.
RESETTING = "resetting"


class CreatedBy(Schema):
    name: str
    image: str


class BranchOut(FromConsumed):
    id: str
    project_id: str
    parent_id: str | None = None
    parent_timestamp: NamedMoment | None = None
    parent_lsn: str | None = None
    name: str
    current_state: str
    pending_state: str | None = None
    state_changed_at: Timestamp
    logical_size: int | None = None
    creation_source: str = "console"
    init_source: str
    masked_as: str | None = None
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
    last_reset_at: Timestamp | None = None

    @staticmethod
    def resolve_current_state(branch: Branch) -> str:
        return RESETTING if branch.is_resetting else branch.current_state

    expires_at: Timestamp | None = None
    ttl_interval_seconds: int | None = None
    created_by: CreatedBy

    @staticmethod
    def resolve_created_by(branch: Branch) -> dict[str, str]:
        # The creator is the account. Events record which of its API keys was used.
        return {"name": branch.project.account.name, "image": ""}

    @staticmethod
    def resolve_parent_timestamp(branch: Branch) -> datetime | None:
        if branch.parent_timestamp or branch.parent_lsn is not None:
            return branch.parent_timestamp
        return branch.created_at.replace(microsecond=0) if branch.parent_id else None

    @staticmethod
    def resolve_parent_lsn(branch: Branch) -> str | None:
        return None if branch.parent_lsn is None else lsn_text(branch.parent_lsn)

    @staticmethod
    def resolve_primary(branch: Branch) -> bool:
        return branch.default


class OneBranch(Schema):
    branch: BranchOut


class AnnotatedObject(Schema):
    type: Literal["console/branch"]
    id: str


class Annotation(Schema):
    """The notes about a branch that were sent when it was created."""

    object: AnnotatedObject
    value: dict[str, str]
    created_at: Timestamp
    updated_at: Timestamp

    @classmethod
    def of(cls, branch: Branch) -> Self:
        return cls(
            object=AnnotatedObject(type="console/branch", id=branch.id),
            value=branch.annotation_value,
            created_at=branch.created_at,
            updated_at=branch.created_at,
        )


class AnnotatedBranch(OneBranch):
    annotation: Annotation


class BranchPagination(Schema):
    # Absent on the last page.
    next: str | None = None
    sort_by: str
    sort_order: Literal["ASC", "DESC"]


class Branches(Schema):
    branches: list[BranchOut]
    # By branch id, for the branches that have notes. Clients look up a branch's annotation here.
    annotations: dict[str, Annotation]
    pagination: BranchPagination


class BranchCount(Schema):
    count: int


def annotations_of(branches: Iterable[Branch]) -> dict[str, Annotation]:
    return {branch.id: Annotation.of(branch) for branch in branches if branch.annotation_value}


class BranchAndOperations(OneBranch, OperationsOut):
    pass


class CreatedBranch(BranchAndOperations):
    endpoints: list[EndpointOut]
    roles: list[RoleOut]
    databases: list[DatabaseOut]
    connection_uris: list[ConnectionDetails] | None = None
