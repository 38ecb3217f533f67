"""The response fields of branches, of their roles, databases and snapshots, and of connection
strings."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal, Self

from ninja import Schema
from pydantic import Field

from controlplane.api.http.fields import NamedMoment, Timestamp, found_at, told
from controlplane.api.responses.endpoints import EndpointOut
from controlplane.api.responses.operations import OperationsOut
from controlplane.api.responses.shared import FromConsumed
from controlplane.models import Branch, BranchState, Snapshot
from controlplane.services.rules.history import lsn_text


class RoleOut(Schema):
    branch_id: str
    name: str
    # Present only in the response to the request that generated the password.
    password: str | None = None
    protected: bool
    created_at: Timestamp
    updated_at: Timestamp


class DatabaseOut(Schema):
    id: int
    branch_id: str
    name: str
    owner_name: str
    created_at: Timestamp
    updated_at: Timestamp


class OneRole(Schema):
    role: RoleOut


class Roles(Schema):
    roles: list[RoleOut]


class RoleAndOperations(OneRole, OperationsOut):
    pass


class Password(Schema):
    password: str


class OneDatabase(Schema):
    database: DatabaseOut


class Databases(Schema):
    databases: list[DatabaseOut]


class DatabaseAndOperations(OneDatabase, OperationsOut):
    pass


class ConnectionParameters(Schema):
    database: str
    password: str
    role: str
    host: str
    pooler_host: str


class ConnectionDetails(Schema):
    connection_uri: str
    connection_parameters: ConnectionParameters


class ConnectionUri(Schema):
    uri: str


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

    resolve_primary = found_at("default")


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


class SnapshotOut(Schema):
    id: str
    name: str
    slug: str = told(
        "The id that was chosen for it, or else `id`; it stays the same", "before-the-change"
    )
    source_branch_id: str | None = Field(
        None, description="The branch that the snapshot was taken of"
    )
    timestamp: NamedMoment | None = Field(
        None,
        description="The snapshot contains everything that was committed before this time; "
        "absent while it is being taken, and for a position in the log",
    )
    created_at: Timestamp
    expires_at: Timestamp | None = None
    manual: bool = True
    full_size: int | None = Field(
        None, description="The size of its databases in bytes, as last measured before"
    )

    @staticmethod
    def resolve_slug(snapshot: Snapshot) -> str:
        return snapshot.slug or snapshot.id

    @staticmethod
    def resolve_timestamp(snapshot: Snapshot) -> datetime | None:
        data = snapshot.data_branch
        if data.current_state != BranchState.READY:
            return None
        if data.is_of_the_past:
            return data.parent_timestamp
        return data.state_changed_at.replace(microsecond=0)

    resolve_full_size = found_at("data_branch.logical_size")


class OneSnapshot(Schema):
    snapshot: SnapshotOut


class SnapshotAndOperations(OneSnapshot, OperationsOut):
    pass


class Snapshots(Schema):
    snapshots: list[SnapshotOut]


class AnonymizationRun(Schema):
    started_at: Timestamp
    completed_at: Timestamp | None = None
    masked_columns: int


class AnonymizedStatus(Schema):
    project_id: str
    branch_id: str
    state: Literal["initialized", "anonymizing", "anonymized", "error"]
    status_message: str
    created_at: Timestamp
    updated_at: Timestamp
    failed_at: Timestamp | None = None
    last_run: AnonymizationRun | None = None


class Attestation(Schema):
    attestation: dict[str, Any]
