"""Request bodies about the hosts of the service."""

from pydantic import BaseModel, Field

from controlplane.api.requests.attributes import Attributes


class ChangedHost(Attributes):
    draining: bool | None = Field(
        None,
        description="Whether new projects are placed on other hosts. Its projects stay and are "
        "served: draining moves nothing",
    )


class UpdateHost(BaseModel):
    host: ChangedHost
