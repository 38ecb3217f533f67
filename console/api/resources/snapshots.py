"""Snapshots of branches: the management API's calls for them, and what they return."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from console.api.fields import (
    JSONObject,
    identifier,
    moment,
    objects,
    one,
    own_id,
    required,
    text,
    whole,
)
from console.api.transport import Transport, may_be_missing


@dataclass(frozen=True)
class Snapshot:
    id: str
    name: str
    # "" if the server no longer reports it.
    source_branch_id: str
    # The snapshot holds what was committed before this; None while the snapshot is being taken.
    timestamp: datetime | None
    created_at: datetime | None
    expires_at: datetime | None
    # Bytes; None if it has not been measured.
    full_size: int | None

    @classmethod
    def read(cls, data: JSONObject) -> "Snapshot":
        snapshot_id = own_id(data)
        return cls(
            id=snapshot_id,
            name=text(data, "name") or snapshot_id,
            source_branch_id=identifier(data, "source_branch_id"),
            timestamp=moment(data, "timestamp"),
            created_at=moment(data, "created_at"),
            expires_at=moment(data, "expires_at"),
            full_size=whole(data, "full_size"),
        )


class SnapshotCalls:
    """One method per call. Every method raises an `APIError` if its call fails."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, project_id: str) -> "list[Snapshot]":
        """Return the snapshots, the newest first. The API has no call for a single one."""
        with may_be_missing("The server does not support snapshots."):
            data = self._transport.get("projects", project_id, "snapshots")
        return [Snapshot.read(item) for item in objects(data, "snapshots")]

    def create(self, project_id: str, branch_id: str, body: JSONObject) -> Snapshot:
        path = ("projects", project_id, "branches", branch_id, "snapshot")
        # Some servers read the attributes from the query, others from the body.
        data = self._transport.send("POST", *path, body=body, query=body)
        return Snapshot.read(one(data, "snapshot"))

    def restore(self, project_id: str, snapshot_id: str, body: JSONObject) -> str:
        """Restore to a new branch, or to the one that the body names. Returns the branch's id."""
        path = ("projects", project_id, "snapshots", snapshot_id, "restore")
        return required(one(self._transport.send("POST", *path, body=body), "branch"), "id")

    def update(self, project_id: str, snapshot_id: str, changes: Mapping[str, Any]) -> None:
        """Change the snapshot. `expires_at` may be None, which means never."""
        path = ("projects", project_id, "snapshots", snapshot_id)
        self._transport.send("PATCH", *path, body={"snapshot": dict(changes)})

    def delete(self, project_id: str, snapshot_id: str) -> None:
        self._transport.send("DELETE", "projects", project_id, "snapshots", snapshot_id)
