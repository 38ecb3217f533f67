"""The request fields of API keys, and those by which operators manage accounts."""

from typing import Annotated

from ninja import Schema
from pydantic import BaseModel, Field

from controlplane.api.http.fields import Attributes, PointInTime, ShortName, Stated, Text
from controlplane.models import Plan
from controlplane.services.accounts import KeySpec

PlanName = Annotated[
    Text, Stated(enum=list(Plan.values)), Field(description="The plan, which sets its limits")
]


class NewAccount(Attributes):
    name: ShortName
    plan: PlanName = Plan.FREE.value


class CreateAccount(BaseModel):
    account: NewAccount


class ChangedAccount(Attributes):
    plan: PlanName | None = None
    disabled: bool | None = Field(
        None, description="Whether its keys and connections are refused, at once"
    )


class UpdateAccount(BaseModel):
    account: ChangedAccount


class DeletionQuery(Schema):
    name: Text = Field(description="The account's name, as a confirmation")


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
        return KeySpec(name=self.key_name, **self.model_dump(exclude={"key_name"}))
