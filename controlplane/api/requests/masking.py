"""The request fields of masked branches."""

from typing import Annotated, Any

from pydantic import BaseModel, Field, model_validator

from controlplane.api.http.fields import Attributes, Notes, Text
from controlplane.api.requests.branches import CreateBranch
from controlplane.services.branches import BranchSpec

MAX_RULES = 2000
PostgresName = Annotated[Text, Field(min_length=1, max_length=63)]


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
