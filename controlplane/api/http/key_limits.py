"""Refuses requests of limited API keys, by path and method alone.

A key that is limited to a project reaches the routes below that project and the routes that are
listed here. So it cannot reach a new route elsewhere until that route is listed. A read-only key
may send GET to every route except those that reveal a password (`SECRETS`).
"""

from django.http import HttpRequest

from controlplane.models import ApiKey
from controlplane.services.errors import Forbidden
from controlplane.services.projects import find_project

PREFIX = "api/v2"
PROJECT = "/projects/<project_id>"
# Routes that always return a password. The view of connection strings checks its query itself.
SECRETS = frozenset({f"{PROJECT}/branches/<branch_id>/roles/<role_name>/reveal_password"})
# Routes outside its project that a key limited to a project may read: its account, the regions and
# their state, and the list of projects, which then contains only its own.
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
        "/mark",
    }
)


def route_of(request: HttpRequest) -> str:
    """The pattern of the route that serves the request, such as "/projects/<project_id>"."""
    match = request.resolver_match
    return match.route.removeprefix(PREFIX) if match else ""


def project_of(request: HttpRequest) -> str | None:
    """The id of the project that the path names; None if it names none. There may be no such
    project."""
    match = request.resolver_match
    return match.kwargs.get("project_id") if match else None


def check_key_limits(request: HttpRequest, key: ApiKey) -> None:
    """Check that the key may send this request. Raises Forbidden if it may not, and NotFound for
    another account's project, as an unlimited key would get."""
    route = route_of(request)
    if key.read_only:
        if request.method != "GET":
            raise Forbidden(f"this API key is read-only: {request.method} is not permitted")
        if route in SECRETS:
            check_passwords(key)
    if key.project_id is not None:
        _check_project(request, key, key.project_id, route)


def check_passwords(key: ApiKey) -> None:
    """Check that the key may read passwords. Raises Forbidden."""
    if key.read_only:
        raise Forbidden("this API key is read-only: it cannot read passwords")


def _check_project(request: HttpRequest, key: ApiKey, own: str, route: str) -> None:
    if route in BESIDE_THE_PROJECT and request.method == "GET":
        return
    limited = f'this API key is limited to the project "{own}"'
    if route != PROJECT and not route.startswith(f"{PROJECT}/"):
        raise Forbidden(f"{limited}: {request.method} {request.path} is not permitted")
    project_id = project_of(request)
    assert project_id is not None
    if project_id != own:
        find_project(key.account, project_id)
        raise Forbidden(f'{limited}: it cannot access the project "{project_id}"')
    if route == PROJECT and request.method == "DELETE":
        raise Forbidden(f"{limited}, and may not delete the project itself")
