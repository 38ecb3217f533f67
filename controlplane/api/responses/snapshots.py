"""The response fields of snapshots."""

from datetime import datetime

from ninja import Schema
from pydantic import Field

from controlplane.api.http.fields import NamedMoment, Timestamp
from controlplane.api.responses.operations import OperationsOut
from controlplane.models import BranchState, Snapshot


class SnapshotOut(Schema):
    id: str
    name: str
    slug: str = Field(
        description="The id that was chosen for it, or else `id`; it stays the same",
        examples=["before-the-change"],
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
    expires_at: Timestamp | None = Field(None, description="When it is deleted automatically")
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

    @staticmethod
    def resolve_full_size(snapshot: Snapshot) -> int | None:
        return snapshot.data_branch.logical_size


class OneSnapshot(Schema):
    snapshot: SnapshotOut


class SnapshotAndOperations(OneSnapshot, OperationsOut):
    pass


class Snapshots(Schema):
    snapshots: list[SnapshotOut]
