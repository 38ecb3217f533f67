"""The management API, one method per call: the console's only way to anything it shows or does."""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.cookiejar import DefaultCookiePolicy
from typing import Any, TypeVar, overload
from urllib.parse import quote

import requests
from django.conf import settings
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase

from console.api_errors import APIError, NonsenseAnswer, TooSlow, Unreachable, error_class
from console.api_results import (
    ApiKey,
    Branch,
    Database,
    Endpoint,
    NewApiKey,
    Operation,
    Page,
    Project,
    Region,
    User,
    objects,
    one,
    required,
    text,
)

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")

log = logging.getLogger(__name__)

# Calls of one page run in here side by side; threads start when first needed, so after a fork.
_threads = ThreadPoolExecutor(max_workers=32, thread_name_prefix="management-api")


class ManagementAPI:
    """The API as one user sees it.

    Every method raises an `APIError` when the API refuses (its subclass says how), fails, is too
    slow, cannot be reached or talks nonsense. Ids are the API's own strings.
    """

    def __init__(self, key: str) -> None:
        self._auth = _Bearer(key)

    # Account

    def me(self) -> User:
        return User.read(self._mapping(self._get("users", "me")))

    def regions(self) -> list[Region]:
        return [Region.read(item) for item in objects(self._get("regions"), "regions")]

    def api_keys(self) -> list[ApiKey]:
        return [ApiKey.read(item) for item in objects(self._get("api_keys"))]

    def create_api_key(self, name: str) -> NewApiKey:
        data = self._mapping(self._send("POST", "api_keys", body={"key_name": name}))
        key_id = data.get("id")
        return NewApiKey(
            id=key_id if isinstance(key_id, int) else 0,
            name=text(data, "name") or name,
            key=required(data, "key"),
        )

    def revoke_api_key(self, key_id: int) -> None:
        self._send("DELETE", "api_keys", str(key_id))

    # Projects

    def projects(self, *, limit: int, cursor: str = "") -> Page[Project]:
        data = self._get("projects", query=_page_query(limit, cursor))
        return Page.read(data, "projects", Project.read, limit=limit)

    def project(self, project_id: str) -> Project:
        return Project.read(one(self._get("projects", project_id), "project"))

    def create_project(self, *, name: str, region_id: str) -> Project:
        asked = {"name": name, "region_id": region_id}
        body = {"project": {field: value for field, value in asked.items() if value}}
        return Project.read(one(self._send("POST", "projects", body=body), "project"))

    def rename_project(self, project_id: str, name: str) -> None:
        self._send("PATCH", "projects", project_id, body={"project": {"name": name}})

    def delete_project(self, project_id: str) -> None:
        self._send("DELETE", "projects", project_id)

    # Branches

    def branches(self, project_id: str) -> list[Branch]:
        data = self._get("projects", project_id, "branches")
        return [Branch.read(item) for item in objects(data, "branches")]

    def branch(self, project_id: str, branch_id: str) -> Branch:
        return Branch.read(one(self._get("projects", project_id, "branches", branch_id), "branch"))

    def create_branch(
        self, project_id: str, *, name: str, parent_id: str, with_endpoint: bool
    ) -> Branch:
        asked = {"name": name, "parent_id": parent_id}
        body: dict[str, Any] = {"branch": {field: value for field, value in asked.items() if value}}
        if with_endpoint:
            body["endpoints"] = [{"type": "read_write"}]
        return Branch.read(
            one(self._send("POST", "projects", project_id, "branches", body=body), "branch")
        )

    def rename_branch(self, project_id: str, branch_id: str, name: str) -> None:
        body = {"branch": {"name": name}}
        self._send("PATCH", "projects", project_id, "branches", branch_id, body=body)

    def set_default_branch(self, project_id: str, branch_id: str) -> None:
        self._send("POST", "projects", project_id, "branches", branch_id, "set_as_default")

    def delete_branch(self, project_id: str, branch_id: str) -> None:
        self._send("DELETE", "projects", project_id, "branches", branch_id)

    # Endpoints

    def endpoints(self, project_id: str) -> list[Endpoint]:
        data = self._get("projects", project_id, "endpoints")
        return [Endpoint.read(item) for item in objects(data, "endpoints")]

    def endpoint(self, project_id: str, endpoint_id: str) -> Endpoint:
        data = self._get("projects", project_id, "endpoints", endpoint_id)
        return Endpoint.read(one(data, "endpoint"))

    def create_endpoint(self, project_id: str, attributes: Mapping[str, Any]) -> Endpoint:
        body = {"endpoint": {"type": "read_write", **attributes}}
        data = self._send("POST", "projects", project_id, "endpoints", body=body)
        return Endpoint.read(one(data, "endpoint"))

    def update_endpoint(
        self, project_id: str, endpoint_id: str, attributes: Mapping[str, Any]
    ) -> Endpoint:
        body = {"endpoint": dict(attributes)}
        data = self._send("PATCH", "projects", project_id, "endpoints", endpoint_id, body=body)
        return Endpoint.read(one(data, "endpoint"))

    def start_endpoint(self, project_id: str, endpoint_id: str) -> None:
        self._send("POST", "projects", project_id, "endpoints", endpoint_id, "start")

    def suspend_endpoint(self, project_id: str, endpoint_id: str) -> None:
        self._send("POST", "projects", project_id, "endpoints", endpoint_id, "suspend")

    def delete_endpoint(self, project_id: str, endpoint_id: str) -> None:
        self._send("DELETE", "projects", project_id, "endpoints", endpoint_id)

    # Connecting

    def roles(self, project_id: str, branch_id: str) -> list[str]:
        """The names of the branch's roles."""
        data = self._get("projects", project_id, "branches", branch_id, "roles")
        return [required(item, "name") for item in objects(data, "roles")]

    def databases(self, project_id: str, branch_id: str) -> list[Database]:
        data = self._get("projects", project_id, "branches", branch_id, "databases")
        return [Database.read(item) for item in objects(data, "databases")]

    def connection_uri(
        self,
        project_id: str,
        *,
        branch_id: str,
        endpoint_id: str,
        role: str,
        database: str,
        pooled: bool,
    ) -> str:
        """With the role's password in it."""
        query = {
            "branch_id": branch_id,
            "endpoint_id": endpoint_id,
            "role_name": role,
            "database_name": database,
            "pooled": "true" if pooled else "false",
        }
        data = self._get("projects", project_id, "connection_uri", query=query)
        return required(self._mapping(data), "uri")

    # Operations

    def operations(self, project_id: str, *, limit: int, cursor: str = "") -> Page[Operation]:
        data = self._get("projects", project_id, "operations", query=_page_query(limit, cursor))
        return Page.read(data, "operations", Operation.read, limit=limit)

    def operation(self, project_id: str, operation_id: str) -> Operation:
        data = self._get("projects", project_id, "operations", operation_id)
        return Operation.read(one(data, "operation"))

    # The wire

    def _get(self, *path: str, query: Mapping[str, str | int] | None = None) -> object:
        try:
            return self._call(_pooled, "GET", path, query=query)
        except TooSlow:
            raise
        except Unreachable:
            # The server may have closed a kept connection just now; reading twice harms nobody.
            return self._call(_pooled, "GET", path, query=query)

    def _send(self, method: str, *path: str, body: Mapping[str, Any] | None = None) -> object:
        # On a fresh connection: a change that meets a closed one could not safely be sent twice.
        with _session() as fresh:
            return self._call(fresh, method, path, body=body)

    def _call(
        self,
        session: requests.Session,
        method: str,
        path: Sequence[str],
        *,
        query: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> object:
        url = "/".join([settings.MANAGEMENT_API_URL, *(quote(part, safe="") for part in path)])
        try:
            answer = session.request(
                method,
                url,
                params=query,
                json=body,
                auth=self._auth,
                headers={"Accept": "application/json"},
                timeout=(min(5, settings.MANAGEMENT_API_TIMEOUT), settings.MANAGEMENT_API_TIMEOUT),
                allow_redirects=False,
            )
        except requests.Timeout as error:
            log.warning("event=api_too_slow method=%s url=%s", method, url)
            seconds = settings.MANAGEMENT_API_TIMEOUT
            raise TooSlow(f"No answer within {seconds:g} seconds.") from error
        except requests.RequestException as error:
            log.warning("event=api_unreachable method=%s url=%s error=%r", method, url, error)
            raise Unreachable(f"No connection to {settings.MANAGEMENT_API_URL}.") from error
        if answer.ok and answer.status_code < 300:
            return _json(answer)
        raise _refusal(answer)

    @staticmethod
    def _mapping(data: object) -> Mapping[str, Any]:
        if not isinstance(data, Mapping):
            raise NonsenseAnswer("The answer is not an object.")
        return data


@overload
def side_by_side(a: Callable[[], A], b: Callable[[], B], /) -> tuple[A, B]: ...
@overload
def side_by_side(
    a: Callable[[], A], b: Callable[[], B], c: Callable[[], C], /
) -> tuple[A, B, C]: ...
def side_by_side(*calls: Callable[[], Any]) -> tuple[Any, ...]:
    """Make the calls at the same time; the first of them that failed raises its error."""
    futures = [_threads.submit(call) for call in calls]
    return tuple(future.result() for future in futures)


def each_or_none(call: Callable[[A], B], items: Sequence[A]) -> list[B | None]:
    """Call for every item at the same time; None where the API refused or failed."""

    def quietly(item: A) -> B | None:
        try:
            return call(item)
        except APIError:
            return None

    return list(_threads.map(quietly, items))


class _Bearer(AuthBase):
    """As an auth object, because requests lets a .netrc file win over a mere header."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._key}"
        return request


def _session() -> requests.Session:
    session = requests.Session()
    # Sessions are shared by users: nothing of one may reach the other.
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    adapter = HTTPAdapter(pool_connections=4, pool_maxsize=32)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


_pooled = _session()


def _page_query(limit: int, cursor: str) -> dict[str, str | int]:
    return {"limit": limit, "cursor": cursor} if cursor else {"limit": limit}


def _json(answer: requests.Response) -> object:
    if answer.status_code == 204:
        # Newer servers say so when what was to be deleted is already gone.
        return None
    try:
        data: object = answer.json()
    except ValueError as error:
        log.warning("event=api_nonsense url=%s status=%s", answer.url, answer.status_code)
        raise NonsenseAnswer("The answer is not JSON.", status=answer.status_code) from error
    return data


def _refusal(answer: requests.Response) -> APIError:
    try:
        body = answer.json()
    except ValueError:
        body = None
    data: Mapping[str, Any] = body if isinstance(body, Mapping) else {}
    message = text(data, "message") or f"The answer was {answer.status_code} {answer.reason}."
    return error_class(answer.status_code)(
        message, status=answer.status_code, request_id=text(data, "request_id")
    )
