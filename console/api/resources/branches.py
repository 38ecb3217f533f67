"""Branches, their roles and databases, which have no ids but names, and their snapshots: the
management API's calls, and what they return. `ManagementAPI` has those that read branches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from console.api.errors import NonsenseAnswer
from console.api.fields import (
    Id,
    JSONObject,
    NameOrId,
    OtherId,
    Resource,
    inner,
    is_true,
    mapping,
    objects,
    one,
    required,
    text,
)
from console.api.resources.history import PastMoment
from console.api.resources.projects import Usage
from console.api.transport import Calls, may_be_missing


@dataclass(frozen=True)
class Branch(Resource):
    id: Id
    name: NameOrId
    parent_id: OtherId
    current_state: str
    # "" unless an operation is changing the state.
    pending_state: str
    default: Annotated[bool, lambda data, name: is_true(data, name) or is_true(data, "primary")]
    created_at: datetime | None
    # Bytes; None until the API has measured it.
    logical_size: int | None
    usage: Annotated[Usage, lambda data, _: Usage.read(data)]
    # When the branch will be deleted automatically, if it will.
    expires_at: datetime | None = None
    # A protected branch can be neither deleted nor reset.
    protected: bool = False
    # Created with its source's schemas and none of its rows.
    schema_only: Annotated[bool, lambda data, _: text(data, "init_source") == "schema-only"] = False
    # The id of the masked branch whose masked data it has, which may be itself; "" for none.
    masked_as: OtherId = ""
    # When its data was last replaced by another branch's.
    last_reset_at: datetime | None = None
    # The moment of its parent whose data it was copied from.
    parent_timestamp: datetime | None = None
    # The name of the account that created it; "" if the server does not say.
    created_by: Annotated[str, lambda data, name: text(inner(data, name), "name")] = ""


@dataclass(frozen=True)
class Column:
    """A column of a table that has rows of its own and can be masked."""

    # The names of the parts of its place in the API.
    NAMES = ("database_name", "schema_name", "table_name", "column_name")

    place: Sequence[str]
    type: str


class BranchCalls(Calls):
    def columns(self, project_id: str, branch_id: str) -> list[Column]:
        """The columns of all tables of the branch that are not computed from others."""
        path = _path(project_id, branch_id, "schema")
        data = self.transport.get(*_path(project_id, branch_id, "databases"))
        found = []
        for database in (text(each, "name") for each in objects(data, "databases")):
            query = {"db_name": database, "format": "json"}
            with may_be_missing("The server does not tell the columns of a branch."):
                data = self.transport.get(*path, query=query, takes_long=True)
            for table in objects(inner(mapping(data), "json"), "tables"):
                for column in objects(table, "columns"):
                    if not is_true(column, "generated"):
                        names = (database, text(table, "schema"), text(table, "name"))
                        place = [*names, text(column, "name")]
                        found.append(Column(place, text(column, "type")))
        return found

    def create_masked(self, project_id: str, body: JSONObject) -> Branch:
        return self._make(Branch, "branch", "projects", project_id, "branch_anonymized", body=body)

    def masking_rules(self, project_id: str, branch_id: str) -> list[JSONObject]:
        path = _path(project_id, branch_id, "masking_rules")
        return objects(self.transport.get(*path), "masking_rules")

    def mask_again(self, project_id: str, branch_id: str, rules: Sequence[JSONObject]) -> None:
        """Replace the rules of a masked branch, and its data by its parent's, masked by them."""
        path, body = _path(project_id, branch_id, "masking_rules"), {"masking_rules": list(rules)}
        self.transport.send("PATCH", *path, body=body)
        self.transport.send("POST", *_path(project_id, branch_id, "anonymize"))

    def attestation(self, project_id: str, branch_id: str) -> object:
        path = _path(project_id, branch_id, "attestation")
        with may_be_missing("The server has no proof that the branch is masked."):
            return one(self.transport.get(*path), "attestation")

    def create(self, project_id: str, body: JSONObject) -> Branch:
        """Create a branch. The answer holds passwords, which are not kept here."""
        return self._make(Branch, "branch", "projects", project_id, "branches", body=body)

    def update(self, project_id: str, branch_id: str, body: JSONObject) -> None:
        self.transport.send("PATCH", "projects", project_id, "branches", branch_id, body=body)

    def set_default(self, project_id: str, branch_id: str) -> None:
        self.transport.send("POST", *_path(project_id, branch_id, "set_as_default"))

    def restore(self, project_id: str, branch_id: str, body: JSONObject) -> None:
        """Replace the branch's data with the source's. From its parent, this is a reset."""
        self.transport.send("POST", *_path(project_id, branch_id, "restore"), body=body)

    def delete(self, project_id: str, branch_id: str) -> None:
        self.transport.send("DELETE", "projects", project_id, "branches", branch_id)

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
        path = _path(project_id, branch_id, "compare_schema")
        with may_be_missing("The server cannot compare schemas, or the database does not exist."):
            data = self.transport.get(*path, query=query, takes_long=True)
        difference = data.get("diff") if isinstance(data, Mapping) else None
        if not isinstance(difference, str):
            raise NonsenseAnswer("The response lacks “diff”.")
        return difference


@dataclass(frozen=True)
class Database(Resource):
    name: Annotated[str, required]
    owner_name: str


@dataclass(frozen=True)
class Role(Resource):
    name: Annotated[str, required]
    protected: bool
    created_at: datetime | None


class CatalogCalls(Calls):
    def roles(self, project_id: str, branch_id: str) -> list[Role]:
        return self._list(Role, *_path(project_id, branch_id, "roles"))

    def role_names(self, project_id: str, branch_id: str) -> list[str]:
        return [role.name for role in self.roles(project_id, branch_id)]

    def create_role(self, project_id: str, branch_id: str, body: JSONObject) -> str:
        """Create a role. Returns its password."""
        path = _path(project_id, branch_id, "roles")
        return _password(self.transport.send("POST", *path, body=body))

    def reset_password(self, project_id: str, branch_id: str, name: str) -> str:
        path = (*_path(project_id, branch_id, "roles"), name, "reset_password")
        return _password(self.transport.send("POST", *path))

    def reveal_password(self, project_id: str, branch_id: str, name: str) -> str:
        path = (*_path(project_id, branch_id, "roles"), name, "reveal_password")
        self.transport.show_instead("GET", path)
        return required(mapping(self.transport.get(*path)), "password")

    def delete_role(self, project_id: str, branch_id: str, name: str) -> None:
        self.transport.send("DELETE", *_path(project_id, branch_id, "roles"), name)

    def databases(self, project_id: str, branch_id: str) -> list[Database]:
        return self._list(Database, *_path(project_id, branch_id, "databases"))

    def create_database(self, project_id: str, branch_id: str, body: JSONObject) -> None:
        self.transport.send("POST", *_path(project_id, branch_id, "databases"), body=body)

    def update_database(
        self, project_id: str, branch_id: str, name: str, changes: Mapping[str, str]
    ) -> None:
        path = (*_path(project_id, branch_id, "databases"), name)
        self.transport.send("PATCH", *path, body={"database": dict(changes)})

    def delete_database(self, project_id: str, branch_id: str, name: str) -> None:
        self.transport.send("DELETE", *_path(project_id, branch_id, "databases"), name)


def _path(project_id: str, branch_id: str, kind: str) -> tuple[str, ...]:
    return ("projects", project_id, "branches", branch_id, kind)


def _password(data: object) -> str:
    return required(one(data, "role"), "password")


@dataclass(frozen=True)
class Snapshot(Resource):
    id: Id
    name: NameOrId
    # "" if the server no longer reports it.
    source_branch_id: OtherId
    # The snapshot holds what was committed before this; None while the snapshot is being taken.
    timestamp: datetime | None
    created_at: datetime | None
    expires_at: datetime | None
    # Bytes; None if it has not been measured.
    full_size: int | None


class SnapshotCalls(Calls):
    def list(self, project_id: str) -> "list[Snapshot]":
        """Return the snapshots, the newest first. The API has no call for a single one."""
        with may_be_missing("The server does not support snapshots."):
            return self._list(Snapshot, "projects", project_id, "snapshots")

    def create(self, project_id: str, branch_id: str, body: JSONObject) -> Snapshot:
        path = _path(project_id, branch_id, "snapshot")
        # Some servers read the attributes from the query, others from the body.
        data = self.transport.send("POST", *path, body=body, query=body)
        return Snapshot.read(one(data, "snapshot"))

    def restore(self, project_id: str, snapshot_id: str, body: JSONObject) -> str:
        """Restore to a new branch, or to the one that the body names. Returns the branch's id."""
        path = ("projects", project_id, "snapshots", snapshot_id, "restore")
        return required(one(self.transport.send("POST", *path, body=body), "branch"), "id")

    def update(self, project_id: str, snapshot_id: str, body: JSONObject) -> None:
        """Change the snapshot. `expires_at` may be None, which means never."""
        self.transport.send("PATCH", "projects", project_id, "snapshots", snapshot_id, body=body)

    def delete(self, project_id: str, snapshot_id: str) -> None:
        self.transport.send("DELETE", "projects", project_id, "snapshots", snapshot_id)
