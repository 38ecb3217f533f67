"""The request fields of branches, and of their endpoints, roles and databases."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from controlplane.api.endpoint_fields import sent_attributes, with_request_fields
from controlplane.api.http.fields import (
    WHOLE,
    Attributes,
    Identifier,
    JsonObject,
    Name,
    Notes,
    PointInTime,
    Stated,
    Text,
    TextMap,
)
from controlplane.api.http.not_offered import NotOffered
from controlplane.models import ATTRIBUTES
from controlplane.services.branches import BranchChanges as Changes
from controlplane.services.branches import BranchSpec
from controlplane.services.restoring import RestoreSpec
from controlplane.services.rules import endpoint_attributes
from controlplane.services.rules.branch_expiry import Expiry
from controlplane.services.rules.endpoint_attributes import POOLER_SETTINGS
from controlplane.services.rules.history import MomentSpec

LIBRARIES = "the platform chooses the libraries that every endpoint loads when it starts"


PoolerSettings = Annotated[
    dict[Text, Text],
    Stated(
        propertyNames={"enum": list(POOLER_SETTINGS)},
        additionalProperties={"type": "string", "pattern": "^[0-9]{1,9}$"},
    ),
]
MAX_RULES = 2000
PostgresName = Annotated[Text, Field(min_length=1, max_length=63)]


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

    def sent(self) -> endpoint_attributes.EndpointSettings:
        return endpoint_attributes.EndpointSettings(
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


OF_PARENT = ("parent_timestamp", "parent_lsn")
OF_SOURCE = ("source_timestamp", "source_lsn")
# A hundred years.
MAX_TTL_SECONDS = 100 * 366 * 86400  # seconds
ENDS = {"expires_at", "ttl_interval_seconds"}
TWO_ENDS = "expires_at and ttl_interval_seconds both set the branch's expiry: send only one of them"


class BranchAttributes(Attributes):
    """The attributes that a caller may set on a new and on an existing branch."""

    name: Name | None = None
    expires_at: PointInTime | None = Field(
        default=None,
        description="When the branch is deleted automatically: RFC 3339, with a time zone, in "
        "the future.",
    )
    ttl_interval_seconds: Annotated[int, Field(ge=1, le=MAX_TTL_SECONDS), WHOLE] | None = Field(
        default=None, description="The same, as a number of seconds from now."
    )
    archived: Annotated[
        bool | None,
        NotOffered(
            "delete the branch, or keep a snapshot of it; an idle branch uses only disk space",
            unless=(False,),
        ),
    ] = None

    @model_validator(mode="after")
    def one_end(self) -> "BranchAttributes":
        if self.model_fields_set >= ENDS:
            raise ValueError(TWO_ENDS)
        return self

    @property
    def expiry(self) -> Expiry:
        return Expiry(at=self.expires_at, ttl_seconds=self.ttl_interval_seconds)


class NewBranch(BranchAttributes):
    parent_id: Text | None = None
    protected: bool = False
    parent_lsn: Text | None = Field(
        default=None, description="A past position in the parent's log, such as `0/1A2B3C4D`."
    )
    parent_timestamp: PointInTime | None = Field(
        default=None,
        description="A past moment of the parent: RFC 3339, with a time zone. All that was "
        "committed until then is in the branch.",
    )
    init_source: Literal["parent-data", "schema-only"] = Field(
        default="parent-data",
        description="`schema-only` creates a branch without rows and without a parent.",
    )


class CreateBranch(BaseModel):
    branch: NewBranch | None = None
    # The service refuses more than one, in words that clients know.
    endpoints: Annotated[list[NewBranchEndpoint], Field(max_length=10)] | None = None
    annotation_value: Notes | None = Field(
        default=None,
        description="Notes about the branch: at most 50 texts by name, at most 16,384 characters "
        "in total.",
    )

    def spec(self, **others: Any) -> BranchSpec:
        """`others` replaces fields."""
        wanted = self.branch or NewBranch()
        spec = BranchSpec(
            name=wanted.name,
            parent_id=wanted.parent_id,
            moment=MomentSpec(wanted.parent_timestamp, wanted.parent_lsn, OF_PARENT),
            protected=wanted.protected,
            schema_only=wanted.init_source == "schema-only",
            expiry=wanted.expiry,
            annotation=self.annotation_value or {},
            endpoints=[endpoint.attributes() for endpoint in self.endpoints or ()],
        )
        return replace(spec, **others)


class MaskingRule(Attributes):
    database_name: PostgresName
    schema_name: PostgresName
    table_name: PostgresName
    column_name: PostgresName
    masking_function: Annotated[Text, Field(max_length=1000)] | None = Field(
        None, description="One of the functions in the documentation, such as `anon.fake_email()`"
    )
    masking_value: Annotated[Text, Field(max_length=1000)] | None = Field(
        None, description="The value that all rows get, in place of `masking_function`"
    )

    @model_validator(mode="after")
    def one_way(self) -> "MaskingRule":
        if (self.masking_function is None) == (self.masking_value is None):
            raise ValueError("send one of masking_function and masking_value")
        return self


class MaskingRules(BaseModel):
    masking_rules: Annotated[list[MaskingRule], Field(max_length=MAX_RULES)]

    def rules(self) -> list[dict[str, Any]]:
        return [rule.model_dump(exclude_none=True) for rule in self.masking_rules]


class CreateAnonymizedBranch(Attributes):
    branch_create: CreateBranch | None = Field(None, description="The branch and its endpoint")
    masking_rules: Annotated[list[MaskingRule], Field(max_length=MAX_RULES)] | None = None
    start_anonymization: bool = Field(
        False, description="Whether to make the branch's data now; else `anonymize` does"
    )
    annotation_value: Notes | None = Field(None, description="As in `branch_create`")

    def spec(self) -> BranchSpec:
        create = self.branch_create or CreateBranch()
        rules = MaskingRules(masking_rules=self.masking_rules or [])
        notes = self.annotation_value or create.annotation_value or {}
        return create.spec(
            masking_rules=rules.rules(), starts_masking=self.start_anonymization, annotation=notes
        )


class RestoreBranch(Attributes):
    source_branch_id: Text = Field(
        description="The branch whose present or past state replaces this branch's; for a past "
        "state it may be this branch itself"
    )
    source_lsn: Text | None = Field(
        None, description="A past position in the source's log, such as `0/1A2B3C4D`"
    )
    source_timestamp: PointInTime | None = Field(
        None, description="A past moment of the source: RFC 3339, with a time zone"
    )
    preserve_under_name: Name | None = Field(
        None,
        description="The name of a new branch that keeps the previous data and gets this "
        "branch's children; required if it has children",
    )

    def spec(self) -> RestoreSpec:
        return RestoreSpec(
            source_branch_id=self.source_branch_id,
            moment=MomentSpec(self.source_timestamp, self.source_lsn, OF_SOURCE),
            preserve_under_name=self.preserve_under_name,
        )


class BranchChanges(BranchAttributes):
    protected: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def without_null(cls, sent: Any) -> Any:
        """Treat null as absent, except that `expires_at: null` removes the branch's expiry."""
        if not isinstance(sent, dict):
            return sent
        return {
            name: value for name, value in sent.items() if value is not None or name == "expires_at"
        }

    def changes(self) -> Changes:
        says_when = not self.model_fields_set.isdisjoint(ENDS)
        return Changes(
            name=self.name, protected=self.protected, expiry=self.expiry if says_when else None
        )


class UpdateBranch(BaseModel):
    branch: BranchChanges


class NewRole(Attributes):
    name: Identifier
    no_login: bool = False


class CreateRole(BaseModel):
    role: NewRole


class NewDatabase(BaseModel):
    name: Identifier
    owner_name: Identifier


class CreateDatabase(BaseModel):
    database: NewDatabase


class DatabaseChanges(BaseModel):
    name: Identifier | None = None
    owner_name: Identifier | None = None


class UpdateDatabase(BaseModel):
    database: DatabaseChanges
