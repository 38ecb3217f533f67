"""The request fields that name a past moment, and those of snapshots, and the query parameters of
reading schemas and logs."""

from typing import Annotated, Literal

from ninja import Field, Schema
from pydantic import BaseModel

from controlplane.api.http.fields import Attributes, Name, PointInTime, Text
from controlplane.services.rules.history import MomentSpec
from controlplane.services.snapshots import SnapshotChanges, SnapshotRestore, SnapshotSpec

AT = "A past moment of the branch: RFC 3339, with a time zone"
POSITION = "A past position in the branch's log, such as `0/1A2B3C4D`"


class NamesMoment(BaseModel):
    timestamp: PointInTime | None = Field(None, description=AT)
    lsn: Text | None = Field(None, description=POSITION)

    @property
    def moment(self) -> MomentSpec:
        return MomentSpec(self.timestamp, self.lsn)


class MomentQuery(NamesMoment, Schema):
    pass


class TimeTravel(NamesMoment, Attributes):
    pass


class SchemaQuery(MomentQuery):
    db_name: Text = Field(description="The name of the database")
    format: Literal["sql", "json"] = "sql"


class ComparisonQuery(MomentQuery):
    db_name: Text = Field(description="The name of the database")
    base_branch_id: Text | None = Field(
        None,
        description="The base branch; by default the branch's parent, or for a past moment of a "
        "branch without a parent the branch itself",
    )
    base_timestamp: PointInTime | None = Field(None, description=AT.replace("the", "the base", 1))
    base_lsn: Text | None = Field(None, description=POSITION.replace("the", "the base", 1))

    @property
    def base_moment(self) -> MomentSpec:
        return MomentSpec(self.base_timestamp, self.base_lsn, ("base_timestamp", "base_lsn"))


class LogsQuery(Schema):
    limit: int = Field(100, ge=1, le=1000, description="The most lines")
    source: Literal["postgres", "pgbouncer"] | None = Field(
        None, description="Only this log; by default both"
    )


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
        return SnapshotRestore(**{**self.model_dump(), "name": self.name or name})


class FinalizeRestore(Attributes):
    name: Name | None = Field(
        None, description="The new name of the replaced branch; by default `<name>_old_<time>`"
    )
