"""The response fields of roles, databases and connection strings."""

from ninja import Schema

from controlplane.api.http.fields import Timestamp
from controlplane.api.responses.operations import OperationsOut


class RoleOut(Schema):
    branch_id: str
    name: str
    # Present only in the response to the request that generated the password.
    password: str | None = None
    protected: bool
    created_at: Timestamp
    updated_at: Timestamp


class DatabaseOut(Schema):
    id: int
    branch_id: str
    name: str
    owner_name: str
    created_at: Timestamp
    updated_at: Timestamp


class OneRole(Schema):
    role: RoleOut


class Roles(Schema):
    roles: list[RoleOut]


class RoleAndOperations(OneRole, OperationsOut):
    pass


class Password(Schema):
    password: str


class OneDatabase(Schema):
    database: DatabaseOut


class Databases(Schema):
    databases: list[DatabaseOut]


class DatabaseAndOperations(OneDatabase, OperationsOut):
    pass


class ConnectionParameters(Schema):
    database: str
    password: str
    role: str
    host: str
    pooler_host: str


class ConnectionDetails(Schema):
    connection_uri: str
    connection_parameters: ConnectionParameters


class ConnectionUri(Schema):
    uri: str
