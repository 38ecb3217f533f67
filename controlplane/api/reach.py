"""What an API key that is limited may ask: refused by path and method, whatever lies behind.

A route that is not named here is out of a limited key's reach; only what lies below its own
project is within it by itself. So a new route is closed until somebody opens it.
"""

from django.http import HttpRequest

from controlplane.models import ApiKey
from controlplane.services.errors import Forbidden
from controlplane.services.projects import find_project

PREFIX = "api/v2"
PROJECT = "/projects/<project_id>"
# What reads a password whatever is asked for; a connection string's view looks at its query.
SECRETS = frozenset({f"{PROJECT}/branches/<branch_id>/roles/<role_name>/reveal_password"})
# What a key of one project may read beside it: who it is, where it could be and how that fares,
# and the list that then has just its project.
BESIDE_THE_PROJECT = frozenset(
    {
        "/projects",
        "/projects/shared",
        "/users/me",
        "/users/me/organizations",
        "/organizations/<org_id>",
        "/auth",
        "/status",
        "/regions",
    }
)


def route_of(request: HttpRequest) -> str:
    """The request's path as the API's own pattern, as "/projects/<project_id>"."""
    match = request.resolver_match
    return match.route.removeprefix(PREFIX) if match else ""


def check_reach(request: HttpRequest, key: ApiKey) -> None:
    """Raises Forbidden for what the key may not ask, and NotFound for another account's project,
    as every key gets it."""
    route = route_of(request)
    if key.read_only:
        if request.method != "GET":
            raise Forbidden(f"this API key is read-only: {request.method} is out of its reach")
        if route in SECRETS:
            check_passwords(key)
    if key.project_id is not None:
        _check_project(request, key, key.project_id, route)


def check_passwords(key: ApiKey) -> None:
    """Raises Forbidden."""
    if key.read_only:
        raise Forbidden("this API key is read-only: passwords are out of its reach")


def _check_project(request: HttpRequest, key: ApiKey, own: str, route: str) -> None:
    if route in BESIDE_THE_PROJECT and request.method == "GET":
        return
    limited = f'this API key is limited to the project "{own}"'
    if route != PROJECT and not route.startswith(f"{PROJECT}/"):
        raise Forbidden(f"{limited}: {request.method} {request.path} is out of its reach")
    assert request.resolver_match is not None
    asked = request.resolver_match.kwargs["project_id"]
    if asked != own:
        find_project(key.account, asked)
        raise Forbidden(f'{limited}: the project "{asked}" is out of its reach')
    if route == PROJECT and request.method == "DELETE":
        raise Forbidden(f"{limited}, and may not delete the project itself")
