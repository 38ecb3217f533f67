"""The response fields of connection strings."""

from ninja import Schema


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
