"""Connection strings for the databases of an endpoint."""

from dataclasses import dataclass
from urllib.parse import quote

from django.conf import settings

from controlplane.models import Account, Database, Endpoint, Role
from controlplane.services.branches import NewBranch, default_branch, find_branch
from controlplane.services.catalog import find_database, find_role, password_of, reveal
from controlplane.services.endpoints import find_endpoint
from controlplane.services.errors import NotFound
from controlplane.services.projects import find_project


@dataclass(frozen=True)
class Connection:
    uri: str
    database: str
    role: str
    password: str | None
    host: str
    pooler_host: str


def connection_to(
    endpoint: Endpoint,
    role: Role,
    database: Database,
    *,
    password: str | None,
    pooled: bool = False,
) -> Connection:
    """What a client needs to connect to the database through the endpoint. If `password` is None,
    the URI contains none. If `pooled`, the URI leads to the pooler."""
    region = endpoint.project.region
    name = f"{endpoint.id}.{region.host}"
    pooler_name = f"{endpoint.id}-pooler.{region.host}"
    user = quote(role.name, safe="")
    if password is not None:
        user += f":{quote(password, safe='')}"
    port = "" if region.port == 5432 else f":{region.port}"
    path = f"{port}/{quote(database.name, safe='')}"
    if _is_local(region.host):
        named = f"{endpoint.id}-pooler" if pooled else endpoint.id
        option = f"options={quote(f'endpoint={named}', safe='')}"
        # node-postgres verifies the server's certificate with any sslmode except "disable", and it
        # does not know the proxy's certificate authority. Without sslmode it connects without TLS,
        # which is safe because the traffic does not leave this machine. Clients that use libpq
        # still use TLS without it.
        needs_tls = settings.PROXY_PLAIN_CONNECTIONS == "never"
        place = f"localhost{path}?{'sslmode=require&' if needs_tls else ''}{option}"
    else:
        place = f"{pooler_name if pooled else name}{path}?sslmode=require"
    return Connection(
        uri=f"postgresql://{user}@{place}",
        database=database.name,
        role=role.name,
        password=password,
        host=name,
        pooler_host=pooler_name,
    )


def _is_local(host: str) -> bool:
    """Whether the host is the client's own machine. Few resolvers know names below `localhost`, so
    the URI then names the endpoint in an option, which every client can send."""
    return host == "localhost" or host.endswith(".localhost")


def find_connection(
    account: Account,
    project_id: str,
    *,
    branch_id: str | None,
    endpoint_id: str | None,
    role_name: str,
    database_name: str,
    pooled: bool,
    with_password: bool,
) -> Connection:
    """How to connect to a database as a role: through the endpoint, if one is named, else through
    the endpoint of the branch, by default of the default branch. Raises NotFound, and
    PasswordNotStored if `with_password`."""
    project = find_project(account, project_id)
    if endpoint_id:
        endpoint = find_endpoint(project, endpoint_id)
    else:
        branch = find_branch(project, branch_id) if branch_id else default_branch(project)
        found = Endpoint.objects.filter(branch=branch, deleted_at=None).first()
        if found is None:
            raise NotFound("endpoint not found", fields=["endpoint_id"])
        endpoint = found
        endpoint.project, endpoint.branch = project, branch
    if branch_id and endpoint.branch_id != branch_id:
        raise NotFound("endpoint not found", fields=["endpoint_id"])
    role = find_role(endpoint.branch, role_name)
    return connection_to(
        endpoint,
        role,
        find_database(endpoint.branch, database_name),
        password=reveal(project, endpoint.branch, role, once=True) if with_password else None,
        pooled=pooled,
    )


def connection_to_new(created: NewBranch) -> Connection | None:
    """How to connect to a new branch; None unless it has exactly one endpoint, one role and one
    database, and the role's password is known."""
    endpoints, roles, databases = created.endpoints, created.roles, created.databases
    if not len(endpoints) == len(roles) == len(databases) == 1:
        return None
    role = roles[0]
    if not role.password and not role.encrypted_password:
        return None
    password = role.password or password_of(created.branch.project, role)
    return connection_to(endpoints[0], roles[0], databases[0], password=password)
