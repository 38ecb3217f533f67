"""The management API, one method per call. Only SQL takes another way."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from console.api.errors import APIError, NotFound, NotOffered
from console.api.fields import (
    JSONObject,
    Page,
    inner,
    mapping,
    moment,
    objects,
    one,
    required,
    stamp,
    text,
)
from console.api.resources.account import ApiKey, NewApiKey, OwnKey, User, WebhookCalls
from console.api.resources.branches import (
    Branch,
    BranchCalls,
    CatalogCalls,
    SnapshotCalls,
)
from console.api.resources.endpoints import Endpoint, Metrics, PgSetting, Session
from console.api.resources.history import HistoryCalls
from console.api.resources.operations import Event, Operation
from console.api.resources.projects import Project, ProjectState, Region
from console.api.resources.service_status import StatusCalls
from console.api.transport import (
    Calls,
    Server,
    Transport,
    default_server,
    may_be_missing,
    new_once_token,
)

# What is cancelled or retried: ("operations", its id), or ("chains", a chain's id).
Target = tuple[Literal["operations", "chains"], str]
Verb = Literal["cancel", "retry"]

# The most projects that the API returns at once, and the most pages of them that are read.
MAX_PAGE_SIZE = 400
MAX_PAGES = 25


class ManagementAPI(Calls):
    """The API as one user sees it. An `APIError` says how the API refuses, or that it fails, is too
    slow, cannot be reached, or returns an invalid answer. Ids are the API's own strings."""

    def __init__(
        self, key: str, server: Server | None = None, *, has_marks: bool = False, once: str = ""
    ) -> None:
        """`server` is by default the one of MANAGEMENT_API_URL. Without a key nothing is sent:
        every call then raises Unauthorized. `has_marks` says whether the server may have the call
        of `mark`. `once` is of the form that was sent (`Transport.once`)."""
        self.server = server or default_server()
        self._has_marks = has_marks
        super().__init__(Transport(key, self.server, once=once))
        self.branching = BranchCalls(self.transport)
        self.catalog = CatalogCalls(self.transport)
        self.history = HistoryCalls(self.transport)
        self.snapshots = SnapshotCalls(self.transport)
        self.webhooks = WebhookCalls(self.transport)
        self.status = StatusCalls(self.transport)

    @property
    def once(self) -> str:
        """What the next form has as its `once`."""
        return self.transport.once or new_once_token()

    # Account

    def me(self) -> User:
        return User.read(mapping(self.transport.get("users", "me")))

    def own_key(self) -> OwnKey:
        return OwnKey.read(mapping(self.transport.get("auth")))

    def regions(self) -> list[Region]:
        """Return the regions; none if the server does not list them."""
        try:
            return self._list(Region, "regions")
        except NotFound:
            return []

    def api_keys(self) -> list[ApiKey]:
        return [ApiKey.read(item) for item in objects(self.transport.get("api_keys"))]

    def create_api_key(self, body: JSONObject) -> NewApiKey:
        """Create a key. A server whose keys cannot be limited makes one without these limits."""
        data = mapping(self.transport.send("POST", "api_keys", body=body))
        return NewApiKey.read({**data, "name": text(data, "name") or text(body, "key_name")})

    def revoke_api_key(self, key_id: int) -> None:
        self.transport.send("DELETE", "api_keys", str(key_id))

    # Projects

    def projects(self, *, limit: int, cursor: str = "") -> Page[Project]:
        data = self.transport.get("projects", query=_page_query(limit, cursor))
        return Page.read(data, "projects", Project.read, limit=limit)

    def all_projects(self) -> list[Project]:
        """Return the account's projects, however many pages they take. At most MAX_PAGES are read,
        as a server may return pages without end."""
        found: dict[str, Project] = {}
        cursor = ""
        for _ in range(MAX_PAGES):
            known = len(found)
            page = self.projects(limit=MAX_PAGE_SIZE, cursor=cursor)
            found |= {project.id: project for project in page.items}
            cursor = page.cursor
            if not cursor or len(found) == known:
                break
        return list(found.values())

    def project_states(self) -> list[ProjectState]:
        """Return the state of the account's projects, except those without anything in them."""
        with may_be_missing("The server does not report the state of projects."):
            data = self.transport.get("projects", "states")
        if not isinstance(data, Mapping) or "projects" not in data:
            # To other servers, "states" is the id of a project, and some answer for any id.
            raise NotOffered("The server does not report the state of projects.")
        return [ProjectState.read(item) for item in objects(data, "projects")]

    def project(self, project_id: str) -> Project:
        return self._one(Project, "project", "projects", project_id)

    def create_project(self, body: JSONObject) -> Project:
        return self._make(Project, "project", "projects", body=body)

    def update_project(self, project_id: str, body: JSONObject) -> None:
        self.transport.send("PATCH", "projects", project_id, body=body)

    def delete_project(self, project_id: str) -> Project | None:
        """Returns the deleted project; None if the server does not."""
        data = self.transport.send("DELETE", "projects", project_id)
        found = inner(data, "project") if isinstance(data, Mapping) else {}
        return Project.read(found) if text(found, "id") == project_id else None

    def deleted_projects(self) -> Page[Project]:
        """Return the first page of the deleted projects that can be recovered."""
        with may_be_missing("The server does not keep deleted projects."):
            data = self.transport.get(
                "projects", query={"recoverable": "true", "limit": MAX_PAGE_SIZE}
            )
        return Page.read(data, "projects", Project.read, limit=MAX_PAGE_SIZE)

    def recover_project(self, project_id: str) -> None:
        self.transport.send("POST", "projects", project_id, "recover")

    # Branches

    def branches(self, project_id: str) -> list[Branch]:
        return self._list(Branch, "projects", project_id, "branches")

    def branch(self, project_id: str, branch_id: str) -> Branch:
        return self._one(Branch, "branch", "projects", project_id, "branches", branch_id)

    # Endpoints

    def endpoints(self, project_id: str) -> list[Endpoint]:
        return self._list(Endpoint, "projects", project_id, "endpoints")

    def endpoint(self, project_id: str, endpoint_id: str) -> Endpoint:
        return self._one(Endpoint, "endpoint", "projects", project_id, "endpoints", endpoint_id)

    def create_endpoint(self, project_id: str, body: JSONObject) -> Endpoint:
        return self._make(Endpoint, "endpoint", "projects", project_id, "endpoints", body=body)

    def update_endpoint(self, project_id: str, endpoint_id: str, body: JSONObject) -> Endpoint:
        path = ("projects", project_id, "endpoints", endpoint_id)
        return Endpoint.read(one(self.transport.send("PATCH", *path, body=body), "endpoint"))

    def run_endpoint(
        self, project_id: str, endpoint_id: str, verb: Literal["start", "suspend", "restart"]
    ) -> None:
        self.transport.send("POST", "projects", project_id, "endpoints", endpoint_id, verb)

    def delete_endpoint(self, project_id: str, endpoint_id: str) -> None:
        self.transport.send("DELETE", "projects", project_id, "endpoints", endpoint_id)

    def pg_settings(self, project_id: str, endpoint_id: str) -> list[PgSetting]:
        path = ("projects", project_id, "endpoints", endpoint_id, "pg_settings")
        with may_be_missing("The server does not list Postgres settings."):
            return self._list(PgSetting, *path)

    def sessions(self, project_id: str, endpoint_id: str) -> tuple[list[Session], datetime | None]:
        """Return the sessions in the endpoint's compute, and when it will be suspended; None if it
        will not be."""
        with may_be_missing("The server does not list sessions."):
            data = self.transport.get("projects", project_id, "endpoints", endpoint_id, "sessions")
        found = [Session.read(item) for item in objects(data, "sessions")]
        return found, moment(data if isinstance(data, dict) else {}, "suspends_at")

    def metrics(self, project_id: str, endpoint_id: str, *, since: datetime, step: int) -> Metrics:
        """Return the endpoint's metrics from `since` to now, in steps of about `step` seconds."""
        path = ("projects", project_id, "endpoints", endpoint_id, "metrics")
        with may_be_missing("The server does not report the metrics of endpoints."):
            data = self.transport.get(*path, query={"from": stamp(since), "step": step})
        return Metrics.read(one(data, "metrics"))

    # Connecting

    def connection_uri(
        self,
        project_id: str,
        *,
        branch_id: str,
        endpoint_id: str,
        role: str,
        database: str,
        pooled: bool,
        password: bool = True,
    ) -> str:
        """Return the URI with the role's password or, which only Perch can do, without it."""
        query = {
            "branch_id": branch_id,
            "endpoint_id": endpoint_id,
            "role_name": role,
            "database_name": database,
            "pooled": json.dumps(pooled),
        }
        if not password:
            query["password"] = json.dumps(password)
        data = self.transport.get("projects", project_id, "connection_uri", query=query)
        return required(mapping(data), "uri")

    # Operations

    def operations(
        self, project_id: str, *, limit: int, cursor: str = "", **filters: str
    ) -> Page[Operation]:
        """`filters` are the API's: names of fields and the values wanted, separated by commas.
        Other servers of this API ignore them."""
        data = self.transport.get(
            "projects", project_id, "operations", query=_page_query(limit, cursor) | filters
        )
        return Page.read(data, "operations", Operation.read, limit=limit)

    def operation(self, project_id: str, operation_id: str) -> Operation:
        path = ("projects", project_id, "operations", operation_id)
        return self._one(Operation, "operation", *path)

    def steer(self, project_id: str, target: Target, verb: Verb) -> list[Operation]:
        """Cancel or retry. Returns the operations concerned; for a retry, the new ones."""
        data = self.transport.send("POST", "projects", project_id, *target, verb, body={})
        return [Operation.read(item) for item in objects(data, "operations")]

    # Activity

    def mark(self, project_id: str = "") -> str:
        """Return a text that changes with what pages show of the project or, without one, of the
        account; "" if there is none. If the call fails, what the page reads next says why."""
        path = ("projects", project_id, "mark") if project_id else ("mark",)
        try:
            return text(mapping(self.transport.get(*path)), "mark") if self._has_marks else ""
        except APIError:
            return ""

    def events(
        self, project_id: str = "", *, limit: int, cursor: str = "", **filters: str
    ) -> Page[Event]:
        """Return the events of a project or, without one, of the account; the newest first."""
        path = ("projects", project_id, "events") if project_id else ("events",)
        with may_be_missing("The server does not record events."):
            data = self.transport.get(*path, query=_page_query(limit, cursor) | filters)
        return Page.read(data, "events", Event.read, limit=limit)


def _page_query(limit: int, cursor: str) -> dict[str, str | int]:
    return {"limit": limit, "cursor": cursor} if cursor else {"limit": limit}
