"""Branches, as callers ask for them."""

from pydantic import BaseModel

from controlplane.api.fields import Name, Text
from controlplane.api.requests.attributes import Attributes
from controlplane.api.requests.endpoints import NewBranchEndpoint
from controlplane.services.branches import BranchSpec


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


class BranchChanges(Attributes):
    name: Name | None = None
    protected: bool | None = None


class UpdateBranch(BaseModel):
    branch: BranchChanges
