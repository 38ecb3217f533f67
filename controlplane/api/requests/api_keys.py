"""The request fields of API keys."""

from pydantic import Field

from controlplane.api.fields import PointInTime, ShortName, Text
from controlplane.api.requests.attributes import Attributes
from controlplane.services.accounts import KeySpec


class CreateApiKey(Attributes):
    key_name: ShortName
    project_id: Text | None = Field(
        None, description="The one project that the key reaches; without it, all of the account's."
    )
    read_only: bool = Field(False, description="It changes nothing, and reads no password.")
    expires_at: PointInTime | None = Field(
        None, description="From then on it is as good as revoked; without it, never."
    )

    def spec(self) -> KeySpec:
        return KeySpec(
            name=self.key_name,
            project_id=self.project_id,
            read_only=self.read_only,
            expires_at=self.expires_at,
        )
