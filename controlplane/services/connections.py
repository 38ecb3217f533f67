"""How to connect: the connection strings of an endpoint's databases."""

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
    """What a client needs to reach the database through the endpoint; but for the password where
    that is None."""
    region = endpoint.project.region
    host = f"{endpoint.id}.{region.host}"
    pooler_host = f"{endpoint.id}-pooler.{region.host}"
    user = quote(role.name, safe="")
    if password is not None:
        user += f":{quote(password, safe='')}"
    port = "" if region.port == 5432 else f":{region.port}"
    path = f"{port}/{quote(database.name, safe='')}"
    if _is_local(region.host):
        name = f"{endpoint.id}-pooler" if pooled else endpoint.id
        option = f"options={quote(f'endpoint={name}', safe='')}"
        # node-postgres verifies the certificate at any sslmode but "disable", and the authority is
        # one that it does not know. With no sslmode it connects in clear, which never leaves this
        # machine, and clients of libpq still encrypt.
        needs_tls = settings.PROXY_PLAIN_CONNECTIONS == "never"
        place = f"localhost{path}?{'sslmode=require&' if needs_tls else ''}{option}"
    else:
        place = f"{pooler_host if pooled else host}{path}?sslmode=require"
    return Connection(
        uri=f"postgresql://{user}@{place}",
        database=database.name,
        role=role.name,
        password=password,
        host=host,
        pooler_host=pooler_host,
    )


def _is_local(host: str) -> bool:
    """Whether it is a name of the client's own machine. Few resolvers know those below localhost,
    so there the endpoint is named by an option, which every client can send."""
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
    """How to reach a database as a role; by default of the default branch, through its
    endpoint. Raises NotFound, and PasswordNotStored where it is asked for."""
    project = find_project(account, project_id)
    if endpoint_id:
        endpoint = find_endpoint(project, endpoint_id)
    else:
        branch = find_branch(project, branch_id) if branch_id else default_branch(project)
        found = Endpoint.objects.filter(branch=branch, deleted_at=None).first()
        if found is None:
            raise NotFound("endpoint not found")
        endpoint = found
        endpoint.project, endpoint.branch = project, branch
    if branch_id and endpoint.branch_id != branch_id:
        raise NotFound("endpoint not found")
    role = find_role(endpoint.branch, role_name)
    return connection_to(
        endpoint,
        role,
        find_database(endpoint.branch, database_name),
        password=reveal(project, endpoint.branch, role) if with_password else None,
        pooled=pooled,
    )


def connection_to_new(created: NewBranch) -> Connection | None:
    """How to reach a new branch; None unless it has one endpoint, and there is no question
    which role, which database and what password are meant."""
    endpoints, roles, databases = created.endpoints, created.roles, created.databases
    if not len(endpoints) == len(roles) == len(databases) == 1:
        return None
    role = roles[0]
    if not role.password and not role.encrypted_password:
        return None
    password = role.password or password_of(created.branch.project, role)
    return connection_to(endpoints[0], roles[0], databases[0], password=password)
