"""The request fields of roles and databases."""

from pydantic import BaseModel

from controlplane.api.http.fields import Attributes, Identifier


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
