"""The request fields and query parameters of snapshots."""

from typing import Annotated

from ninja import Field, Schema
from pydantic import BaseModel

from controlplane.api.http.fields import Attributes, Name, PointInTime, Text
from controlplane.api.requests.schemas import MomentQuery, NamesMoment
from controlplane.services.rules.history import MomentSpec
from controlplane.services.snapshots import SnapshotChanges, SnapshotRestore, SnapshotSpec

EXPIRES_AT = (
    "When the snapshot is deleted automatically, such as `2027-01-31T12:00:00Z`; not in the past"
)


Slug = Annotated[Text, Field(max_length=63, pattern="^[a-z](?:[a-z0-9-]*[a-z0-9])?$")]


class _Wanted(BaseModel):
    name: Name | None = None
    slug: Slug | None = Field(
        None,
        description="Another id for it, unique in the project: lower-case letters, digits and "
        "hyphens",
    )
    expires_at: PointInTime | None = Field(None, description=EXPIRES_AT)


class CreateSnapshotQuery(_Wanted, MomentQuery):
    pass


class NewSnapshot(_Wanted, NamesMoment, Attributes):
    pass


def snapshot_spec(query: CreateSnapshotQuery, body: NewSnapshot | None) -> SnapshotSpec:
    sent = {**query.dict(exclude_none=True), **(body.model_dump(exclude_none=True) if body else {})}
    moment = MomentSpec(sent.pop("timestamp", None), sent.pop("lsn", None))
    return SnapshotSpec(**sent, moment=moment)


class SnapshotAttributes(BaseModel):
    name: Name | None = None
    expires_at: PointInTime | None = Field(None, description=EXPIRES_AT + "; null for never")

    def changes(self) -> SnapshotChanges:
        return SnapshotChanges(
            name=self.name,
            sets_expiry="expires_at" in self.model_fields_set,
            expires_at=self.expires_at,
        )


class UpdateSnapshot(BaseModel):
    snapshot: SnapshotAttributes


class RestoreSnapshotQuery(Schema):
    name: Name | None = Field(None, description="The older place for the body's `name`")


class RestoreSnapshot(Attributes):
    name: Name | None = Field(None, description="The name of the new branch")
    target_branch_id: Text | None = Field(
        None,
        description="The branch that is replaced, now or by `finalize_restore` of the new branch; "
        "by default the snapshot's source branch",
    )
    finalize_restore: bool = Field(
        False, description="Whether to replace the branch now; not a branch that `name` creates"
    )

    def wanted(self, *, name: str | None) -> SnapshotRestore:
        return SnapshotRestore(
            name=self.name or name,
            target_branch_id=self.target_branch_id,
            finalize_restore=self.finalize_restore,
        )


class FinalizeRestore(Attributes):
    name: Name | None = Field(
        None, description="The new name of the replaced branch; by default `<name>_old_<time>`"
    )
