"""Request bodies about the hosts of the service."""

from pydantic import BaseModel, Field

from controlplane.api.fields import Text
from controlplane.api.requests.attributes import Attributes


class ChangedHost(Attributes):
    draining: bool | None = Field(
        None,
        description="Whether new projects are placed on other hosts. If set, its projects are also "
        "moved to the other hosts of its region, as far as these can have them",
    )


class UpdateHost(BaseModel):
    host: ChangedHost


class MoveProject(BaseModel):
    host_id: Text = Field(
        description="The host that the project is to live on: another one of its region"
    )
