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
    stamp,
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

    def create(
        self, project_id: str, branch_id: str, *, name: str, expires_at: datetime | None
    ) -> Snapshot:
        asked: dict[str, Any] = {
            "name": name,
            "expires_at": stamp(expires_at) if expires_at else "",
        }
        # Some servers read these from the query, others from the body.
        query = {field: value for field, value in asked.items() if value}
        path = ("projects", project_id, "branches", branch_id, "snapshot")
        data = self._transport.send("POST", *path, body=query, query=query)
        return Snapshot.read(one(data, "snapshot"))

    def restore_as_branch(self, project_id: str, snapshot_id: str, *, name: str) -> str:
        """Create a branch from the snapshot. Returns the new branch's id."""
        body = {"name": name} if name else {}
        return self._restore(project_id, snapshot_id, body)

    def restore_in_place(self, project_id: str, snapshot_id: str, *, target_id: str) -> str:
        """Replace the target branch's data with the snapshot's. Returns the target's id."""
        body = {"target_branch_id": target_id, "finalize_restore": True}
        return self._restore(project_id, snapshot_id, body)

    def _restore(self, project_id: str, snapshot_id: str, body: JSONObject) -> str:
        path = ("projects", project_id, "snapshots", snapshot_id, "restore")
        return required(one(self._transport.send("POST", *path, body=body), "branch"), "id")

    def update(self, project_id: str, snapshot_id: str, changes: Mapping[str, Any]) -> None:
        """Change the snapshot. `expires_at` may be None, which means never."""
        path = ("projects", project_id, "snapshots", snapshot_id)
        self._transport.send("PATCH", *path, body={"snapshot": dict(changes)})

    def delete(self, project_id: str, snapshot_id: str) -> None:
        self._transport.send("DELETE", "projects", project_id, "snapshots", snapshot_id)
