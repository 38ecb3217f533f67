"""The management API's calls that change branches. Those that read them are in `ManagementAPI`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from console.api.errors import NonsenseAnswer
from console.api.fields import JSONObject, identifier, moment, one, own_id, text, whole
from console.api.resources.history import PastMoment
from console.api.resources.projects import Usage
from console.api.transport import Transport, may_be_missing


@dataclass(frozen=True)
class Branch:
    id: str
    name: str
    parent_id: str
    current_state: str
    # "" unless an operation is changing the state.
    pending_state: str
    default: bool
    created_at: datetime | None
    # Bytes; None until the API has measured it.
    logical_size: int | None
    usage: Usage
    # When the branch will be deleted automatically, if it will.
    expires_at: datetime | None = None
    # A protected branch can be neither deleted nor reset.
    protected: bool = False
    # Created with its source's schemas and none of its rows.
    schema_only: bool = False
    # When its data was last replaced by another branch's.
    last_reset_at: datetime | None = None
    # The moment of its parent whose data it was copied from.
    parent_timestamp: datetime | None = None
    # The name of the account that created it; "" if the server does not say.
    created_by: str = ""

    @classmethod
    def read(cls, data: JSONObject) -> "Branch":
        branch_id = own_id(data)
        creator = data.get("created_by")
        return cls(
            id=branch_id,
            name=text(data, "name") or branch_id,
            parent_id=identifier(data, "parent_id"),
            current_state=text(data, "current_state"),
            pending_state=text(data, "pending_state"),
            default=data.get("default") is True or data.get("primary") is True,
            created_at=moment(data, "created_at"),
            logical_size=whole(data, "logical_size"),
            usage=Usage.read(data),
            expires_at=moment(data, "expires_at"),
            protected=data.get("protected") is True,
            schema_only=text(data, "init_source") == "schema-only",
            last_reset_at=moment(data, "last_reset_at"),
            parent_timestamp=moment(data, "parent_timestamp"),
            created_by=text(creator, "name") if isinstance(creator, Mapping) else "",
        )


class BranchCalls:
    """One method per call. Every method raises an `APIError` if its call fails."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, project_id: str, body: JSONObject) -> Branch:
        """Create a branch. The answer holds passwords, which are not kept here."""
        path = ("projects", project_id, "branches")
        return Branch.read(one(self._transport.send("POST", *path, body=body), "branch"))

    def update(self, project_id: str, branch_id: str, changes: Mapping[str, Any]) -> None:
        body = {"branch": dict(changes)}
        self._transport.send("PATCH", "projects", project_id, "branches", branch_id, body=body)

    def set_default(self, project_id: str, branch_id: str) -> None:
        self._transport.send(
            "POST", "projects", project_id, "branches", branch_id, "set_as_default"
        )

    def restore(self, project_id: str, branch_id: str, body: JSONObject) -> None:
        """Replace the branch's data with the source's. From its parent, this is a reset."""
        path = ("projects", project_id, "branches", branch_id, "restore")
        self._transport.send("POST", *path, body=body)

    def delete(self, project_id: str, branch_id: str) -> None:
        self._transport.send("DELETE", "projects", project_id, "branches", branch_id)

    def schema_difference(
        self,
        project_id: str,
        branch_id: str,
        *,
        base_id: str,
        database: str,
        base_moment: PastMoment | None = None,
    ) -> str:
        """Return a unified diff from the base branch's schema, as it is or as it was at a moment,
        to this branch's."""
        query = {"db_name": database, "base_branch_id": base_id}
        if base_moment:
            query[f"base_{base_moment.field}"] = base_moment.text
        path = ("projects", project_id, "branches", branch_id, "compare_schema")
        with may_be_missing("The server cannot compare schemas, or the database does not exist."):
            data = self._transport.get(*path, query=query, takes_long=True)
        difference = data.get("diff") if isinstance(data, Mapping) else None
        if not isinstance(difference, str):
            raise NonsenseAnswer("The response lacks “diff”.")
        return difference
