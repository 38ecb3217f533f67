"""Compares the contents of a branch at the end of a run with the ledger and the API."""

from typing import Any

import psycopg

from tests.torture.actor import Actor
from tests.torture.checked_api import CheckedApi
from tests.torture.clients import OWNER, Connection, Target, one_row, read

# A broken invariant: its name, and the reason.
Fault = tuple[str, str]


class Reading:
    """The contents of one branch, read through its endpoint. If it has none, one is created."""

    def __init__(self, actor: Actor, key: str, project_id: str, branch: Any) -> None:
        self.world = actor.world
        self.api = CheckedApi(actor, key)
        self.project_id = project_id
        self.path = f"/projects/{project_id}"
        self.branch = branch
        self.branch_id: str = branch["id"]

    def faults(self) -> list[Fault]:
        if self.branch["current_state"] != "ready":
            return self._without_data()
        endpoint = self._open_endpoint()
        if endpoint and self._has_waiting_changes():
            self.api.call("POST", f"{self.path}/endpoints/{endpoint['id']}/restart")
        role = f"{self.path}/branches/{self.branch_id}/roles/{OWNER}"
        revealed = self.api.get(f"{role}/reveal_password")
        if endpoint is None or revealed is None:
            return [("every branch can be reached", f"{self.branch_id}: see the journal")]
        target = Target(self.project_id, endpoint["id"], revealed["password"])
        try:
            with target.connect(self.world.service.stack.proxy_port) as connection:
                return [*self._of_rows(connection, target), *self._of_description(target)]
        except psycopg.Error as error:
            told = f"{self.branch_id} by {target.endpoint_id}: {error}"
            return [("every branch can be reached", told)]

    def _without_data(self) -> list[Fault]:
        """The branch's creation failed or was cancelled: nobody can have written to it."""
        self.world.journal.count("branches read", "without data")
        rows = self.world.ledger.written_on(self.branch_id)
        told = f"{self.branch_id}: its creation failed, and {rows} rows were acknowledged"
        return [("an acknowledged row is there", told)] if rows else []

    def _open_endpoint(self) -> Any:
        """Return the branch's endpoint once connections are possible; None if they are not."""
        endpoints = (self.api.get(f"{self.path}/endpoints") or {"endpoints": []})["endpoints"]
        mine = [one["id"] for one in endpoints if one["branch_id"] == self.branch_id]
        body: Any = {"suspend_timeout_seconds": -1, "disabled": False}
        if mine:
            answer = self.api.call("PATCH", f"{self.path}/endpoints/{mine[0]}", {"endpoint": body})
        else:
            body |= {"branch_id": self.branch_id, "type": "read_write"}
            answer = self.api.call("POST", f"{self.path}/endpoints", {"endpoint": body})
        return answer.body["endpoint"] if answer and answer.ok else None

    def _has_waiting_changes(self) -> bool:
        """Return whether roles or databases may have changed without the compute: because an
        operation was cancelled, it gets them only with the next change or start."""
        page = self.api.get(f"{self.path}/operations?limit=1000") or {"operations": []}
        return any(
            row["action"] == "apply_config" and row["status"] == "cancelled"
            for row in page["operations"]
            if row.get("branch_id") == self.branch_id
        )

    def _of_rows(self, connection: Connection, target: Target) -> list[Fault]:
        told = f"{self.branch_id} by {target.endpoint_id}"
        here, rows = read(connection)
        self.world.journal.count("branches read", "with rows" if rows else "empty")
        missing, later = self.world.ledger.wrong(self.branch_id, rows)
        strangers = self.world.ledger.never_written(self.project_id, rows)
        faults = {
            "an endpoint leads to its branch": here != self.branch_id and f"led to {here}",
            "an acknowledged row is there": missing
            and f"{len(missing)} missing beside {len(rows)}: {missing[:20]}",
            "a past moment has no later row": later and f"{later[:20]} were written later",
            "nobody's rows go astray": strangers and f"{strangers[:20]} were written elsewhere",
        }
        return [(invariant, f"{told}: {what}") for invariant, what in faults.items() if what]

    def _of_description(self, target: Target) -> list[Fault]:
        """Compare roles, databases and settings of the running compute with those in the API."""
        said = self._said(target.endpoint_id)
        with self.world.service.stack.compute(target.endpoint_id, "postgres") as compute:
            has = {
                "roles": _names(
                    compute,
                    "SELECT rolname FROM pg_roles WHERE oid > 16383 AND rolname !~ '^perch_'",
                ),
                "databases": _names(compute, "SELECT datname FROM pg_database WHERE oid > 16383"),
                "settings": {
                    f"{name}={one_row(compute, f'SHOW {name}')[0]}"
                    for name in said["names of settings"]
                },
            }
        return [
            (
                f"{kind} are as the API says",
                f"{self.branch_id} by {target.endpoint_id} has {sorted(has[kind])},"
                f" and is said to have {sorted(said[kind])}",
            )
            for kind in has
            if has[kind] != said[kind]
        ]

    def _said(self, endpoint_id: str) -> dict[str, set[str]]:
        of_branch = f"{self.path}/branches/{self.branch_id}"
        catalog = {
            kind: {row["name"] for row in (self.api.get(f"{of_branch}/{kind}") or {kind: []})[kind]}
            for kind in ("roles", "databases")
        }
        endpoint = (self.api.get(f"{self.path}/endpoints/{endpoint_id}") or {})["endpoint"]
        settings = endpoint["settings"].get("pg_settings", {})
        pairs = {f"{name}={value}" for name, value in settings.items()}
        return {**catalog, "settings": pairs, "names of settings": set(settings)}


def _names(connection: Connection, query: str) -> set[str]:
    return {str(name) for (name,) in connection.execute(query.encode())}
