"""The query parameters of reading and comparing schemas."""

from typing import Literal

from ninja import Field, Schema

from controlplane.api.fields import Text
from controlplane.services.errors import Unprocessable

REFUSED = "Refused (422): create a branch of the moment, and name that"


def _refuse_moments(**moments: str | None) -> None:
    for name, value in moments.items():
        if value is not None:
            raise Unprocessable(
                f"{name} is not offered by this server: create a branch with parent_timestamp or "
                "parent_lsn, and read or compare its schema",
                fields=[name],
            )


class _OfDatabase(Schema):
    db_name: Text = Field(description="The name of the database")
    lsn: Text | None = Field(None, description=REFUSED)
    timestamp: Text | None = Field(None, description=REFUSED)


class SchemaQuery(_OfDatabase):
    format: Literal["sql", "json"] = "sql"

    def refuse_points_in_time(self) -> None:
        """Raises Unprocessable if the request names a point in the past."""
        _refuse_moments(lsn=self.lsn, timestamp=self.timestamp)


class ComparisonQuery(_OfDatabase):
    base_branch_id: Text | None = Field(
        None, description="The base branch; by default the branch's parent"
    )
    base_lsn: Text | None = Field(None, description=REFUSED)
    base_timestamp: Text | None = Field(None, description=REFUSED)

    def refuse_points_in_time(self) -> None:
        """Raises Unprocessable if the request names a point in the past."""
        _refuse_moments(
            lsn=self.lsn,
            timestamp=self.timestamp,
            base_lsn=self.base_lsn,
            base_timestamp=self.base_timestamp,
        )
