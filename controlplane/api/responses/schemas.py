"""The response fields of database schemas."""

from ninja import Schema
from pydantic import Field


class ColumnOut(Schema):
    name: str
    type: str = Field(description="The type, as Postgres writes it")
    nullable: bool
    generated: bool = Field(description="Whether it is generated from other columns")


class ReferencedTable(Schema):
    schema_name: str = Field(alias="schema")
    table: str
    columns: list[str]


class ConstraintOut(Schema):
    name: str
    type: str = Field(description="One of `primary_key`, `unique`, `foreign_key`")
    columns: list[str]
    referenced_table: ReferencedTable | None = None


class TableOut(Schema):
    schema_name: str = Field(alias="schema")
    name: str
    columns: list[ColumnOut]
    constraints: list[ConstraintOut]


class Tables(Schema):
    tables: list[TableOut]


class BranchSchema(Schema):
    sql: str | None = Field(None, description="If the format is `sql`")
    as_json: Tables | None = Field(None, alias="json", description="If the format is `json`")


class SchemaComparison(Schema):
    diff: str
