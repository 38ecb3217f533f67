"""The requests about a project that the users of the API send at random: one function for each."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tests.support.project import wanted
from tests.torture.checked_api import Answer, CheckedApi
from tests.torture.world import World

# Some of these settings take effect at once, some at a restart, and some are refused.
PG_SETTINGS: tuple[dict[str, str], ...] = (
    {},
    {"work_mem": "8MB"},
    {"work_mem": "5MB", "statement_timeout": "1min"},
    {"max_prepared_transactions": "3"},
    {"max_prepared_transactions": "7", "work_mem": "6MB"},
    {"work_mem": "lots"},
    {"no_such_setting": "1"},
)
NAMES = ("heron", "ibis", "stork")


@dataclass
class ProjectClient:
    """Sends a user's requests about one project. `branches` and `endpoints` are the project's, as
    the API has just listed them."""

    world: World
    api: CheckedApi
    chance: random.Random
    project_id: str
    branches: list[Any]
    endpoints: list[Any]
    # The branches that are only restored, which are not in `branches`.
    restored: list[Any]

    def record_listed(self) -> None:
        """Record the listed branches and endpoints, for the checks at the end of the run."""
        for branch in (*self.branches, *self.restored):
            self.world.ledger.note_branch(branch["id"], branch["name"].split()[0])
        for endpoint in self.endpoints:
            self.world.possible_branches[endpoint["id"]].add(endpoint["branch_id"])

    def send(self, method: str, rest: str, body: Any = None) -> Answer | None:
        return self.api.call(method, f"/projects/{self.project_id}{rest}", body)

    def any_branch(self) -> Any:
        return self.chance.choice(self.branches)

    def any_endpoint(self) -> Any | None:
        return self.chance.choice(self.endpoints) if self.endpoints else None

    def branch_without_endpoint(self) -> Any | None:
        taken = {endpoint["branch_id"] for endpoint in self.endpoints}
        free = [branch for branch in self.branches if branch["id"] not in taken]
        return self.chance.choice(free) if free else None

    def change_endpoint(self, **attributes: Any) -> Answer | None:
        """Change attributes of a random endpoint."""
        endpoint = self.any_endpoint()
        if endpoint is None:
            return None
        return self.send("PATCH", f"/endpoints/{endpoint['id']}", {"endpoint": attributes})

    def control(self, verb: str) -> Answer | None:
        """Start, suspend or restart a random endpoint; `verb` is the last part of the path."""
        endpoint = self.any_endpoint()
        return self.send("POST", f"/endpoints/{endpoint['id']}/{verb}") if endpoint else None

    def catalog_path(self, kind: str, rest: str = "") -> str:
        """Return the path of the roles or databases (`kind`) of a random branch."""
        return f"/branches/{self.any_branch()['id']}/{kind}{rest}"

    def any_operation(self, *statuses: str) -> Any | None:
        """Return one of the newest operations: usually one with one of these statuses, if there is
        one, and sometimes any."""
        page = self.api.get(f"/projects/{self.project_id}/operations?limit=30")
        rows = page["operations"] if page else []
        likely = [row for row in rows if row["status"] in statuses]
        rows = likely if likely and self.chance.random() < 0.9 else rows
        return self.chance.choice(rows) if rows else None

    def cancel_or_retry(self, verb: str, operation: Any) -> Answer | None:
        """Cancel or retry (`verb`) the operation, or its whole chain."""
        if self.chance.random() < 0.5:
            return self.send("POST", f"/operations/{operation['id']}/{verb}")
        return self.send("POST", f"/chains/{operation['chain_id']}/{verb}")

    def any_name(self) -> str:
        return self.chance.choice(NAMES)


def create_branch(project: ProjectClient) -> Answer | None:
    if len(project.branches) >= project.world.size.branches:
        return delete_branch(project)
    parent = project.any_branch()["id"]
    name = f"child-{project.chance.getrandbits(48):012x}"
    body: dict[str, Any] = {"branch": {"name": name, "parent_id": parent}}
    if project.chance.random() < 0.6:
        body["endpoints"] = [{"type": "read_write"}]
    if project.chance.random() < 0.2:
        # Such a branch has none of its parent's rows, so the ledger expects none.
        body["branch"]["init_source"] = "schema-only"
    else:
        project.world.ledger.expect_copy(name, parent)
    answer = project.send("POST", "/branches", body)
    if answer and answer.ok:
        project.world.ledger.note_branch(answer.body["branch"]["id"], name)
    return answer


def delete_branch(project: ProjectClient) -> Answer | None:
    parents = {one.get("parent_id") for one in (*project.branches, *project.restored)}
    leaves = [b["id"] for b in project.branches if b["id"] not in parents and not b["default"]]
    if not leaves:
        return None
    leaf = project.chance.choice(leaves)
    project.world.deletion_requested.add(leaf)
    return project.send("DELETE", f"/branches/{leaf}")


def rename_branch(project: ProjectClient) -> Answer | None:
    branch = project.any_branch()
    # Keep the first word: by it, the ledger finds the branch that the user created.
    name = f"{branch['name'].split()[0]} {project.any_name()} {project.chance.randrange(99)}"
    return project.send("PATCH", f"/branches/{branch['id']}", {"branch": {"name": name}})


def make_default(project: ProjectClient) -> Answer | None:
    return project.send("POST", f"/branches/{project.any_branch()['id']}/set_as_default")


def create_endpoint(project: ProjectClient) -> Answer | None:
    branch = project.branch_without_endpoint() or project.any_branch()
    attributes = {"suspend_timeout_seconds": project.chance.choice([0, 2, 4])}
    return project.send("POST", "/endpoints", wanted(branch["id"], attributes))


def delete_endpoint(project: ProjectClient) -> Answer | None:
    endpoint = project.any_endpoint()
    if endpoint is None:
        return None
    project.world.deletion_requested.add(endpoint["id"])
    return project.send("DELETE", f"/endpoints/{endpoint['id']}")


def reassign(project: ProjectClient) -> Answer | None:
    endpoint, goal = (
        project.any_endpoint(),
        project.branch_without_endpoint() or project.any_branch(),
    )
    if endpoint is None:
        return None
    project.world.possible_branches[endpoint["id"]].add(goal["id"])
    body = {"endpoint": {"branch_id": goal["id"]}}
    return project.send("PATCH", f"/endpoints/{endpoint['id']}", body)


def set_settings(project: ProjectClient) -> Answer | None:
    return project.change_endpoint(settings={"pg_settings": project.chance.choice(PG_SETTINGS)})


def resize(project: ProjectClient) -> Answer | None:
    return project.change_endpoint(autoscaling_limit_max_cu=project.chance.choice([0.25, 0.5, 1]))


def pool(project: ProjectClient) -> Answer | None:
    return project.change_endpoint(pooler_enabled=project.chance.random() < 0.5)


def set_timeout(project: ProjectClient) -> Answer | None:
    return project.change_endpoint(suspend_timeout_seconds=project.chance.choice([-1, 1, 2, 3, 5]))


def disable(project: ProjectClient) -> Answer | None:
    return project.change_endpoint(disabled=True)


def enable(project: ProjectClient) -> Answer | None:
    disabled = [endpoint for endpoint in project.endpoints if endpoint["disabled"]]
    if not disabled:
        return None
    path = f"/endpoints/{project.chance.choice(disabled)['id']}"
    return project.send("PATCH", path, {"endpoint": {"disabled": False}})


def start(project: ProjectClient) -> Answer | None:
    return project.control("start")


def suspend(project: ProjectClient) -> Answer | None:
    return project.control("suspend")


def restart(project: ProjectClient) -> Answer | None:
    return project.control("restart")


def create_role(project: ProjectClient) -> Answer | None:
    return project.send(
        "POST", project.catalog_path("roles"), {"role": {"name": project.any_name()}}
    )


def delete_role(project: ProjectClient) -> Answer | None:
    return project.send("DELETE", project.catalog_path("roles", f"/{project.any_name()}"))


def reset_password(project: ProjectClient) -> Answer | None:
    role = project.chance.choice(["neondb_owner", *NAMES])
    return project.send("POST", project.catalog_path("roles", f"/{role}/reset_password"))


def create_database(project: ProjectClient) -> Answer | None:
    owner = project.chance.choice(["neondb_owner", *NAMES])
    body = {"database": {"name": f"of {project.any_name()}", "owner_name": owner}}
    return project.send("POST", project.catalog_path("databases"), body)


def rename_database(project: ProjectClient) -> Answer | None:
    path = project.catalog_path("databases", "/" + quote(f"of {project.any_name()}"))
    return project.send("PATCH", path, {"database": {"name": f"of {project.any_name()}"}})


def delete_database(project: ProjectClient) -> Answer | None:
    return project.send(
        "DELETE", project.catalog_path("databases", "/" + quote(f"of {project.any_name()}"))
    )


def delete_project(project: ProjectClient) -> Answer | None:
    project.world.deletion_requested.add(project.project_id)
    answer = project.send("DELETE", "")
    # If no response came, the project may still exist. A user that finds it in a list uses it
    # again.
    project.world.projects.pop(project.project_id, None)
    return None if answer is None else Answer(answer.status, {})


def read_all(project: ProjectClient) -> Answer | None:
    """Read two pages of operations, each endpoint, and the roles of a branch."""
    page = project.send("GET", "/operations?limit=20")
    if page and page.ok and page.body.get("pagination"):
        cursor = quote(page.body["pagination"]["cursor"])
        project.send("GET", f"/operations?limit=20&cursor={cursor}")
    for endpoint in project.endpoints:
        project.send("GET", f"/endpoints/{endpoint['id']}")
    return project.send("GET", project.catalog_path("roles"))


def cancel(project: ProjectClient) -> Answer | None:
    operation = project.any_operation("scheduling", "running", "cancelling")
    return project.cancel_or_retry("cancel", operation) if operation else None


def retry(project: ProjectClient) -> Answer | None:
    operation = project.any_operation("failed", "cancelled")
    if operation is None:
        return None
    if "endpoint_id" in operation:
        # If the operation is a reassignment, its retry moves the endpoint to this branch.
        project.world.possible_branches[operation["endpoint_id"]].add(operation["branch_id"])
    return project.cancel_or_retry("retry", operation)


# How often each request is sent, relative to the others.
REQUEST_WEIGHTS: Mapping[Callable[[ProjectClient], Answer | None], int] = {
    create_branch: 10,
    delete_branch: 3,
    rename_branch: 2,
    make_default: 1,
    create_endpoint: 8,
    delete_endpoint: 2,
    reassign: 7,
    set_settings: 6,
    resize: 4,
    pool: 2,
    set_timeout: 6,
    disable: 3,
    enable: 6,
    start: 5,
    suspend: 6,
    restart: 4,
    create_role: 4,
    delete_role: 3,
    reset_password: 4,
    create_database: 4,
    rename_database: 3,
    delete_database: 3,
    delete_project: 1,
    read_all: 6,
    cancel: 14,
    retry: 8,
}
