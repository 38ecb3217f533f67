"""Branches, as callers ask for them."""

from pydantic import BaseModel, Field

from controlplane.api.fields import Name, Text
from controlplane.api.requests.attributes import Attributes
from controlplane.api.requests.endpoints import NewBranchEndpoint
from controlplane.services.branches import BranchSpec
from controlplane.services.restoring import RestoreSpec


class NewBranch(Attributes):
    parent_id: Text | None = None
    name: Name | None = None
    protected: bool = False
    parent_lsn: Text | None = None
    parent_timestamp: Text | None = None


class CreateBranch(BaseModel):
    branch: NewBranch | None = None
    endpoints: list[NewBranchEndpoint] | None = None

    def spec(self) -> BranchSpec:
        wanted = self.branch or NewBranch()
        return BranchSpec(
            name=wanted.name,
            parent_id=wanted.parent_id,
            parent_lsn=wanted.parent_lsn,
            parent_timestamp=wanted.parent_timestamp,
            protected=wanted.protected,
            endpoints=[endpoint.asked() for endpoint in self.endpoints or ()],
        )


class RestoreBranch(Attributes):
    source_branch_id: Text = Field(description="Its present state comes in the branch's place")
    source_lsn: Text | None = Field(None, description="Refused (422): no history is kept")
    source_timestamp: Text | None = Field(None, description="Refused (422): no history is kept")
    preserve_under_name: Name | None = Field(
        None,
        description="Of the branch that keeps the data of before, and gets the branch's children; "
        "required where it has any",
    )

    def spec(self) -> RestoreSpec:
        return RestoreSpec(
            source_branch_id=self.source_branch_id,
            source_lsn=self.source_lsn,
            source_timestamp=self.source_timestamp,
            preserve_under_name=self.preserve_under_name,
        )


class BranchChanges(Attributes):
    name: Name | None = None
    protected: bool | None = None


class UpdateBranch(BaseModel):
    branch: BranchChanges
