"""The request fields of endpoints."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from controlplane.api.endpoint_fields import sent_attributes, with_request_fields
from controlplane.api.http.fields import Attributes, JsonObject, Stated, Text, TextMap
from controlplane.api.http.not_offered import NotOffered
from controlplane.models import ATTRIBUTES
from controlplane.services.rules import endpoint_attributes, endpoint_settings
from controlplane.services.rules.endpoint_settings import POOLER_SETTINGS

LIBRARIES = "the platform chooses the libraries that every endpoint loads when it starts"


PoolerSettings = Annotated[
    dict[Text, Text],
    Stated(
        propertyNames={"enum": list(POOLER_SETTINGS)},
        additionalProperties={"type": "string", "pattern": "^[0-9]{1,9}$"},
    ),
]


class EndpointSettings(Attributes):
    """An empty object changes nothing. An object with `pg_settings: null` and nothing else is
    refused, because its meaning is unclear: it might ask to remove all settings or to change none.
    To remove all settings, send an empty map."""

    pg_settings: TextMap | None = None
    pgbouncer_settings: PoolerSettings | None = Field(
        default=None,
        description=f"Whole numbers, sent as strings, for any of {', '.join(POOLER_SETTINGS)}.",
    )
    preload_libraries: Annotated[JsonObject | None, NotOffered(LIBRARIES)] = None

    @model_validator(mode="before")
    @classmethod
    def no_lone_null(cls, sent: Any) -> Any:
        if sent == {"pg_settings": None}:
            raise ValueError("settings must not be nil")
        return sent

    def sent(self) -> endpoint_settings.EndpointSettings:
        return endpoint_settings.EndpointSettings(
            pg_settings=self.pg_settings, pgbouncer_settings=self.pgbouncer_settings
        )


@with_request_fields(ATTRIBUTES.values())
class EndpointAttributes(Attributes):
    settings: EndpointSettings | None = None
    region_id: Text | None = None

    def attributes(self) -> endpoint_attributes.EndpointAttributes:
        return endpoint_attributes.EndpointAttributes(
            chosen=sent_attributes(self),
            settings=self.settings.sent() if self.settings else None,
            region_id=self.region_id,
        )


class NewBranchEndpoint(EndpointAttributes):
    """The endpoint that is created together with a branch, for that branch."""

    type: Annotated[
        Literal["read_write"],
        NotOffered(
            "a branch has one endpoint, for reading and writing; for another endpoint, create a "
            "branch of it",
            only=("read_only",),
        ),
    ] = "read_write"


class NewEndpoint(NewBranchEndpoint):
    branch_id: Text


class CreateEndpoint(BaseModel):
    endpoint: NewEndpoint


class EndpointChanges(EndpointAttributes):
    branch_id: Text | None = None


class UpdateEndpoint(BaseModel):
    endpoint: EndpointChanges
