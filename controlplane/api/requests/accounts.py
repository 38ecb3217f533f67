"""The request fields by which operators manage accounts."""

from typing import Annotated

from ninja import Schema
from pydantic import BaseModel, Field

from controlplane.api.http.attributes import Attributes
from controlplane.api.http.fields import ShortName, Stated, Text
from controlplane.models import Plan

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
