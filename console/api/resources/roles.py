"""Roles and databases of a branch: the management API's calls for them, and what they return.
They are identified by their names."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from console.api.fields import JSONObject, moment, objects, one, required, text
from console.api.transport import Transport


@dataclass(frozen=True)
class Database:
    name: str
    owner_name: str

    @classmethod
    def read(cls, data: JSONObject) -> "Database":
        return cls(name=required(data, "name"), owner_name=text(data, "owner_name"))


@dataclass(frozen=True)
class Role:
    name: str
    protected: bool
    created_at: datetime | None

    @classmethod
    def read(cls, data: JSONObject) -> "Role":
        return cls(
            name=required(data, "name"),
            protected=data.get("protected") is True,
            created_at=moment(data, "created_at"),
        )


class CatalogCalls:
    """One method per call. Every method raises an `APIError` if its call fails."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def roles(self, project_id: str, branch_id: str) -> list[Role]:
        data = self._transport.get(*_path(project_id, branch_id, "roles"))
        return [Role.read(item) for item in objects(data, "roles")]

    def create_role(self, project_id: str, branch_id: str, body: JSONObject) -> str:
        """Create a role. Returns its password."""
        path = _path(project_id, branch_id, "roles")
        return _password(self._transport.send("POST", *path, body=body))

    def reset_password(self, project_id: str, branch_id: str, name: str) -> str:
        """Give the role a new password. Returns it."""
        path = (*_path(project_id, branch_id, "roles"), name, "reset_password")
        return _password(self._transport.send("POST", *path))

    def reveal_password(self, project_id: str, branch_id: str, name: str) -> str:
        path = (*_path(project_id, branch_id, "roles"), name, "reveal_password")
        self._transport.show_instead("GET", path)
        data = self._transport.get(*path)
        return required(data if isinstance(data, Mapping) else {}, "password")

    def delete_role(self, project_id: str, branch_id: str, name: str) -> None:
        self._transport.send("DELETE", *_path(project_id, branch_id, "roles"), name)

    def databases(self, project_id: str, branch_id: str) -> list[Database]:
        data = self._transport.get(*_path(project_id, branch_id, "databases"))
        return [Database.read(item) for item in objects(data, "databases")]

    def create_database(self, project_id: str, branch_id: str, body: JSONObject) -> None:
        self._transport.send("POST", *_path(project_id, branch_id, "databases"), body=body)

    def update_database(
        self, project_id: str, branch_id: str, name: str, changes: Mapping[str, str]
    ) -> None:
        path = (*_path(project_id, branch_id, "databases"), name)
        self._transport.send("PATCH", *path, body={"database": dict(changes)})

    def delete_database(self, project_id: str, branch_id: str, name: str) -> None:
        self._transport.send("DELETE", *_path(project_id, branch_id, "databases"), name)


def _path(project_id: str, branch_id: str, kind: str) -> tuple[str, ...]:
    return ("projects", project_id, "branches", branch_id, kind)


def _password(data: object) -> str:
    return required(one(data, "role"), "password")
