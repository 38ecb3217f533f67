"""How to connect: the connection strings of an endpoint's databases."""

from dataclasses import dataclass
from urllib.parse import quote

from controlplane.models import Database, Endpoint, Role


@dataclass(frozen=True)
class Connection:
    uri: str
    database: str
    role: str
    password: str
    host: str
    pooler_host: str


def connection_to(
    endpoint: Endpoint, role: Role, database: Database, *, password: str, pooled: bool = False
) -> Connection:
    """What a client needs to reach the database through the endpoint."""
    region = endpoint.project.region
    host = f"{endpoint.id}.{region.host}"
    pooler_host = f"{endpoint.id}-pooler.{region.host}"
    port = "" if region.port == 5432 else f":{region.port}"
    user = f"{quote(role.name, safe='')}:{quote(password, safe='')}"
    place = f"{pooler_host if pooled else host}{port}/{quote(database.name, safe='')}"
    return Connection(
        uri=f"postgresql://{user}@{place}?sslmode=require",
        database=database.name,
        role=role.name,
        password=password,
        host=host,
        pooler_host=pooler_host,
    )
