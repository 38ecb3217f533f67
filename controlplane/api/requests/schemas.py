"""The fields that name a past moment, and the query parameters of reading schemas and logs."""

from typing import Literal

from ninja import Field, Schema
from pydantic import BaseModel

from controlplane.api.http.fields import Attributes, PointInTime, Text
from controlplane.services.rules.history import MomentSpec

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
