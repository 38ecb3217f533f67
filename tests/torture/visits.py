"""What a user of the API may wish of a project, each as one request."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tests.support.project import wanted
from tests.torture.checked_api import Answer, CheckedApi
from tests.torture.world import World

# Some take effect at once, some at a restart, and some are refused.
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
class Visit:
    """A project as a user finds it: its branches and endpoints, as the API lists them."""

    world: World
    api: CheckedApi
    chance: random.Random
    project_id: str
    branches: list[Any]
    endpoints: list[Any]

    def learn(self) -> None:
        """Note what is listed, for those who check it later."""
        for branch in self.branches:
            self.world.ledger.born(branch["id"], branch["name"].split()[0])
        for endpoint in self.endpoints:
            self.world.places[endpoint["id"]].add(endpoint["branch_id"])

    def ask(self, method: str, rest: str, body: Any = None) -> Answer | None:
        return self.api.call(method, f"/projects/{self.project_id}{rest}", body)

    def branch(self) -> Any:
        return self.chance.choice(self.branches)

    def endpoint(self) -> Any | None:
        return self.chance.choice(self.endpoints) if self.endpoints else None

    def free_branch(self) -> Any | None:
        """One without an endpoint."""
        taken = {endpoint["branch_id"] for endpoint in self.endpoints}
        free = [branch for branch in self.branches if branch["id"] not in taken]
        return self.chance.choice(free) if free else None

    def change(self, **attributes: Any) -> Answer | None:
        """Change one of the endpoints."""
        endpoint = self.endpoint()
        if endpoint is None:
            return None
        return self.ask("PATCH", f"/endpoints/{endpoint['id']}", {"endpoint": attributes})

    def tell(self, verb: str) -> Answer | None:
        """Tell one of the endpoints to start, suspend or restart."""
        endpoint = self.endpoint()
        return self.ask("POST", f"/endpoints/{endpoint['id']}/{verb}") if endpoint else None

    def catalog(self, kind: str, rest: str = "") -> str:
        """The path of a branch's roles or databases."""
        return f"/branches/{self.branch()['id']}/{kind}{rest}"

    def operation(self, *statuses: str) -> Any | None:
        """One of the newest, if it can be of these statuses; now and then any."""
        page = self.api.get(f"/projects/{self.project_id}/operations?limit=30")
        rows = page["operations"] if page else []
        likely = [row for row in rows if row["status"] in statuses]
        rows = likely if likely and self.chance.random() < 0.9 else rows
        return self.chance.choice(rows) if rows else None

    def steer(self, verb: str, operation: Any) -> Answer | None:
        """Cancel the operation or try it again, alone or with its chain."""
        if self.chance.random() < 0.5:
            return self.ask("POST", f"/operations/{operation['id']}/{verb}")
        return self.ask("POST", f"/chains/{operation['chain_id']}/{verb}")

    def named(self) -> str:
        return self.chance.choice(NAMES)


def create_branch(visit: Visit) -> Answer | None:
    if len(visit.branches) >= visit.world.size.branches:
        return delete_branch(visit)
    parent = visit.branch()["id"]
    name = f"child-{visit.chance.getrandbits(48):012x}"
    body: dict[str, Any] = {"branch": {"name": name, "parent_id": parent}}
    if visit.chance.random() < 0.6:
        body["endpoints"] = [{"type": "read_write"}]
    if visit.chance.random() < 0.2:
        # It has none of its parent's rows.
        body["branch"]["init_source"] = "schema-only"
    else:
        visit.world.ledger.claim(name, parent)
    answer = visit.ask("POST", "/branches", body)
    if answer and answer.ok:
        visit.world.ledger.born(answer.body["branch"]["id"], name)
    return answer


def delete_branch(visit: Visit) -> Answer | None:
    parents = {branch.get("parent_id") for branch in visit.branches}
    leaves = [b["id"] for b in visit.branches if b["id"] not in parents and not b["default"]]
    if not leaves:
        return None
    leaf = visit.chance.choice(leaves)
    visit.world.doomed.add(leaf)
    return visit.ask("DELETE", f"/branches/{leaf}")


def rename_branch(visit: Visit) -> Answer | None:
    branch = visit.branch()
    # The first word stays: it is what the branch was claimed by.
    name = f"{branch['name'].split()[0]} {visit.named()} {visit.chance.randrange(99)}"
    return visit.ask("PATCH", f"/branches/{branch['id']}", {"branch": {"name": name}})


def make_default(visit: Visit) -> Answer | None:
    return visit.ask("POST", f"/branches/{visit.branch()['id']}/set_as_default")


def create_endpoint(visit: Visit) -> Answer | None:
    branch = visit.free_branch() or visit.branch()
    attributes = {"suspend_timeout_seconds": visit.chance.choice([0, 2, 4])}
    return visit.ask("POST", "/endpoints", wanted(branch["id"], attributes))


def delete_endpoint(visit: Visit) -> Answer | None:
    endpoint = visit.endpoint()
    if endpoint is None:
        return None
    visit.world.doomed.add(endpoint["id"])
    return visit.ask("DELETE", f"/endpoints/{endpoint['id']}")


def reassign(visit: Visit) -> Answer | None:
    endpoint, goal = visit.endpoint(), visit.free_branch() or visit.branch()
    if endpoint is None:
        return None
    visit.world.places[endpoint["id"]].add(goal["id"])
    body = {"endpoint": {"branch_id": goal["id"]}}
    return visit.ask("PATCH", f"/endpoints/{endpoint['id']}", body)


def set_settings(visit: Visit) -> Answer | None:
    return visit.change(settings={"pg_settings": visit.chance.choice(PG_SETTINGS)})


def resize(visit: Visit) -> Answer | None:
    return visit.change(autoscaling_limit_max_cu=visit.chance.choice([0.25, 0.5, 1]))


def pool(visit: Visit) -> Answer | None:
    return visit.change(pooler_enabled=visit.chance.random() < 0.5)


def set_timeout(visit: Visit) -> Answer | None:
    return visit.change(suspend_timeout_seconds=visit.chance.choice([-1, 1, 2, 3, 5]))


def disable(visit: Visit) -> Answer | None:
    return visit.change(disabled=True)


def enable(visit: Visit) -> Answer | None:
    disabled = [endpoint for endpoint in visit.endpoints if endpoint["disabled"]]
    if not disabled:
        return None
    path = f"/endpoints/{visit.chance.choice(disabled)['id']}"
    return visit.ask("PATCH", path, {"endpoint": {"disabled": False}})


def start(visit: Visit) -> Answer | None:
    return visit.tell("start")


def suspend(visit: Visit) -> Answer | None:
    return visit.tell("suspend")


def restart(visit: Visit) -> Answer | None:
    return visit.tell("restart")


def create_role(visit: Visit) -> Answer | None:
    return visit.ask("POST", visit.catalog("roles"), {"role": {"name": visit.named()}})


def delete_role(visit: Visit) -> Answer | None:
    return visit.ask("DELETE", visit.catalog("roles", f"/{visit.named()}"))


def reset_password(visit: Visit) -> Answer | None:
    role = visit.chance.choice(["neondb_owner", *NAMES])
    return visit.ask("POST", visit.catalog("roles", f"/{role}/reset_password"))


def create_database(visit: Visit) -> Answer | None:
    owner = visit.chance.choice(["neondb_owner", *NAMES])
    body = {"database": {"name": f"of {visit.named()}", "owner_name": owner}}
    return visit.ask("POST", visit.catalog("databases"), body)


def rename_database(visit: Visit) -> Answer | None:
    path = visit.catalog("databases", "/" + quote(f"of {visit.named()}"))
    return visit.ask("PATCH", path, {"database": {"name": f"of {visit.named()}"}})


def delete_database(visit: Visit) -> Answer | None:
    return visit.ask("DELETE", visit.catalog("databases", "/" + quote(f"of {visit.named()}")))


def delete_project(visit: Visit) -> Answer | None:
    visit.world.doomed.add(visit.project_id)
    answer = visit.ask("DELETE", "")
    # Where no answer came it may live on; who finds that out goes on with it.
    visit.world.projects.pop(visit.project_id, None)
    return None if answer is None else Answer(answer.status, {})


def look_around(visit: Visit) -> Answer | None:
    """Page through the operations, and read what there is one by one."""
    page = visit.ask("GET", "/operations?limit=20")
    if page and page.ok and page.body.get("pagination"):
        cursor = quote(page.body["pagination"]["cursor"])
        visit.ask("GET", f"/operations?limit=20&cursor={cursor}")
    for endpoint in visit.endpoints:
        visit.ask("GET", f"/endpoints/{endpoint['id']}")
    return visit.ask("GET", visit.catalog("roles"))


def cancel(visit: Visit) -> Answer | None:
    operation = visit.operation("scheduling", "running", "cancelling")
    return visit.steer("cancel", operation) if operation else None


def retry(visit: Visit) -> Answer | None:
    operation = visit.operation("failed", "cancelled")
    if operation is None:
        return None
    if "endpoint_id" in operation:
        # It may be a reassignment.
        visit.world.places[operation["endpoint_id"]].add(operation["branch_id"])
    return visit.steer("retry", operation)


# Each with its weight.
WISHES: Mapping[Callable[[Visit], Answer | None], int] = {
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
    look_around: 6,
    cancel: 14,
    retry: 8,
}
