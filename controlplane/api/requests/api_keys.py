"""The request fields of API keys."""

from pydantic import Field

from controlplane.api.http.attributes import Attributes
from controlplane.api.http.fields import PointInTime, ShortName, Text
from controlplane.services.accounts import KeySpec


class CreateApiKey(Attributes):
    key_name: ShortName
    project_id: Text | None = Field(
        None,
        description="The only project that the key can access; without it, all of the "
        "account's projects.",
    )
    read_only: bool = Field(
        False, description="Whether the key can neither change anything nor read passwords."
    )
    expires_at: PointInTime | None = Field(
        None, description="When the key expires; without it, never."
    )

    def spec(self) -> KeySpec:
        return KeySpec(
            name=self.key_name,
            project_id=self.project_id,
            read_only=self.read_only,
            expires_at=self.expires_at,
        )
