"""The management API's calls that change branches. Those that read them are in `ManagementAPI`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from console.api_errors import NonsenseAnswer
from console.api_results import Branch, JSONObject, one, stamp
from console.api_transport import Transport
from console.api_webhooks import may_be_missing


@dataclass(frozen=True)
class NewBranch:
    """The attributes of a branch to create. The API chooses those that are left out."""

    name: str = ""
    parent_id: str = ""
    expires_at: datetime | None = None
    protected: bool = False
    # With the roles, databases and schemas of the source, and none of its rows.
    schema_only: bool = False
    with_endpoint: bool = False

    @property
    def body(self) -> JSONObject:
        asked: dict[str, Any] = {
            "name": self.name,
            "parent_id": self.parent_id,
            "expires_at": stamp(self.expires_at) if self.expires_at else "",
            "protected": self.protected,
            "init_source": "schema-only" if self.schema_only else "",
        }
        body: dict[str, Any] = {"branch": {name: value for name, value in asked.items() if value}}
        if self.with_endpoint:
            body["endpoints"] = [{"type": "read_write"}]
        return body


class BranchCalls:
    """One method per call. Every method raises an `APIError` if its call fails."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, project_id: str, wanted: NewBranch) -> Branch:
        """Create a branch. The answer holds passwords, which are not kept here."""
        path = ("projects", project_id, "branches")
        return Branch.read(one(self._transport.send("POST", *path, body=wanted.body), "branch"))

    def update(self, project_id: str, branch_id: str, changes: Mapping[str, Any]) -> None:
        body = {"branch": dict(changes)}
        self._transport.send("PATCH", "projects", project_id, "branches", branch_id, body=body)

    def set_default(self, project_id: str, branch_id: str) -> None:
        self._transport.send(
            "POST", "projects", project_id, "branches", branch_id, "set_as_default"
        )

    def restore(
        self, project_id: str, branch_id: str, *, source_id: str, preserve_under_name: str
    ) -> None:
        """Replace the branch's data with the source's. From its parent, this is a reset."""
        body = {"source_branch_id": source_id}
        if preserve_under_name:
            body["preserve_under_name"] = preserve_under_name
        self._transport.send(
            "POST", "projects", project_id, "branches", branch_id, "restore", body=body
        )

    def delete(self, project_id: str, branch_id: str) -> None:
        self._transport.send("DELETE", "projects", project_id, "branches", branch_id)

    def schema_difference(
        self, project_id: str, branch_id: str, *, base_id: str, database: str
    ) -> str:
        """Return a unified diff from the base branch's schema to this branch's."""
        query = {"db_name": database, "base_branch_id": base_id}
        path = ("projects", project_id, "branches", branch_id, "compare_schema")
        with may_be_missing("It compares no schemas, or knows no such database."):
            data = self._transport.get(*path, query=query)
        difference = data.get("diff") if isinstance(data, Mapping) else None
        if not isinstance(difference, str):
            raise NonsenseAnswer("The answer lacks “diff”.")
        return difference
