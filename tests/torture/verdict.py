"""What must hold once the strikes have ended, and what must be gone at the end."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import psycopg

from tests.support.waiting import load
from tests.torture import processes
from tests.torture.actor import Actor
from tests.torture.checked_api import CheckedApi
from tests.torture.contents import Reading
from tests.torture.leftovers import Leftovers
from tests.torture.world import World

# Seconds within which each must hold.
WELL_WITHIN, ENDED_WITHIN, TRUE_WITHIN, GONE_WITHIN = 90.0, 240.0, 30.0, 30.0
HISTORY_WITHIN = 60.0
READ_AT_ONCE = 3
# The most results that are shown for a broken invariant.
MOST_TOLD = 20


class Verdict(Actor):
    """Not run as a thread: `settled`, `complete`, `cleared` and, once `up` has ended, `down` are
    called in this order."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "verdict")
        self.apis = {key: CheckedApi(self, key) for key in world.keys}

    def settled(self) -> None:
        """Check that every operation ends by itself, and that the states in the API are right."""
        self.insist("the service is well", self.ailing, within=WELL_WITHIN)
        self.insist("every operation ends", self.unfinished, within=ENDED_WITHIN)
        self.insist("what failed says why", self.without_reason, within=0)
        self.insist("states are true and nothing is pending", self.untrue, within=TRUE_WITHIN)
        self.nothing_left_over()

    def complete(self) -> None:
        """Check that every branch can be connected to, has its rows, and is as the API describes
        it."""
        readings = [
            Reading(self, key, project["id"], branch)
            for key, api in self.apis.items()
            for project in self.projects(api)
            for branch in self.listed(api, project["id"], "branches")
        ]
        for reading in readings:
            self.world.ledger.note_branch(reading.branch_id, reading.branch["name"].split()[0])
        living = {reading.branch_id for reading in readings}
        self.insist(
            "what no user has deleted still exists", lambda: self.vanished(living), within=0
        )
        self.does("read every branch")
        with ThreadPoolExecutor(READ_AT_ONCE) as threads:
            for faults in threads.map(Reading.faults, readings):
                for invariant, detail in faults:
                    self.world.journal.broken(invariant, detail)
        # Every branch was just started, and runs.
        self.insist("history goes on", self.without_history, within=HISTORY_WITHIN)

    def cleared(self) -> None:
        """Delete everything, and check that nothing is left."""
        for api in self.apis.values():
            for project in self.projects(api):
                self.world.deletion_requested.add(project["id"])
                api.call("DELETE", f"/projects/{project['id']}")
        self.insist("every operation ends", self.unfinished, within=ENDED_WITHIN)
        self.nothing_left_over()

    def down(self) -> None:
        """Check the processes after `up` has ended."""

        def left() -> list[str]:
            return [f"{pid}: {line}" for pid, line in processes.of(self.world.state_dir).items()]

        self.insist("no process is left over", left, within=5)

    def nothing_left_over(self) -> None:
        for invariant, look in Leftovers(self.world.service.stack).looks().items():
            self.insist(invariant, look, within=GONE_WITHIN)

    def insist(self, invariant: str, find: Callable[[], list[str]], *, within: float) -> None:
        """Wait for so many seconds, or longer on a busy machine, until `find` finds nothing that
        breaks the invariant."""
        self.does(invariant)
        began = time.monotonic()
        while True:
            try:
                found = find()
            except psycopg.OperationalError as error:
                found = [f"cannot be seen: {error}"]
            waited = time.monotonic() - began
            if not found or waited > within * load():
                break
            time.sleep(0.2)
        self.note("insist", invariant=invariant, seconds=round(waited, 1), found=found)
        if found:
            more = f"; and {len(found) - MOST_TOLD} more" if len(found) > MOST_TOLD else ""
            told = "; ".join(found[:MOST_TOLD])
            self.world.journal.broken(invariant, f"after {waited:.0f} s: {told}{more}")

    # by the API

    def projects(self, api: CheckedApi) -> list[Any]:
        return list((api.get("/projects?limit=400") or {"projects": []})["projects"])

    def listed(self, api: CheckedApi, project_id: str, kind: str) -> list[Any]:
        return list((api.get(f"/projects/{project_id}/{kind}") or {kind: []})[kind])

    def ailing(self) -> list[str]:
        return [] if self.world.service.answers() else ["/healthz does not answer 200"]

    def untrue(self) -> list[str]:
        """Return endpoints and branches that are not in the state that the API returns, or are
        changing."""
        found = []
        runs = processes.postmasters(self.world.state_dir)
        places = set()
        for api in self.apis.values():
            for project in self.projects(api):
                for listed in self.listed(api, project["id"], "endpoints"):
                    told = api.get(f"/projects/{project['id']}/endpoints/{listed['id']}")
                    endpoint = told["endpoint"] if told else {**listed, "pending_state": "unknown"}
                    found += self.lies(endpoint, runs)
                    places.add(endpoint["branch_id"])
                for branch in self.listed(api, project["id"], "branches"):
                    if branch.get("pending_state"):
                        found.append(f"{branch['id']} is pending {branch['pending_state']}")
        return found + [f"{one} has no endpoint, and runs" for one in runs.keys() - places]

    def lies(self, endpoint: Any, runs: Mapping[str, list[psutil.Process]]) -> list[str]:
        place = f"{endpoint['id']} on {endpoint['branch_id']}"
        state, processes_there = endpoint["current_state"], runs.get(endpoint["branch_id"], [])
        if endpoint.get("pending_state"):
            return [f"{place} is pending {endpoint['pending_state']}"]
        if state != "active":
            return [f"{place} is {state} and {one.pid} runs" for one in processes_there]
        if not processes_there or not self.world.service.stack.is_running(endpoint["id"]):
            pids = [one.pid for one in processes_there]
            return [f"{place} is active and does not answer; its processes: {pids}"]
        return []

    def vanished(self, living: set[str]) -> list[str]:
        """Return branches with rows that disappeared although nobody requested the deletion of them
        or their projects."""
        projects = dict(self.query("SELECT id, project_id FROM controlplane_branch"))
        doomed = self.world.deletion_requested
        return [
            f"{branch_id} with {self.world.ledger.written_on(branch_id)} rows"
            for branch_id in self.world.ledger.branches() - living - doomed
            if projects.get(branch_id) not in doomed
        ]

    # by the rows

    def unfinished(self) -> list[str]:
        rows = self.query(
            "SELECT id::text, action, status, endpoint_id, branch_id, failures_count, error,"
            " created_at::text FROM controlplane_operation"
            " WHERE status NOT IN ('finished', 'failed', 'cancelled') ORDER BY created_at"
        )
        return [" ".join(map(str, row)) for row in rows]

    def without_history(self) -> list[str]:
        """Return the branches with an active endpoint of which no chain goes on."""
        rows = self.query(
            "SELECT e.branch_id FROM controlplane_endpoint e"
            " WHERE e.current_state = 'active' AND e.deleted_at IS NULL AND NOT EXISTS ("
            "SELECT FROM controlplane_historychain c WHERE c.branch_id = e.branch_id"
            " AND c.ended_at IS NULL)"
        )
        return [branch_id for (branch_id,) in rows]

    def without_reason(self) -> list[str]:
        rows = self.query(
            "SELECT id::text, action, status, error FROM controlplane_operation"
            " WHERE (status <> 'finished') <> (coalesce(error, '') <> '')"
        )
        return [" ".join(map(str, row)) for row in rows]

    def query(self, statement: str) -> list[Any]:
        with self.world.service.stack.database() as connection:
            return connection.execute(statement.encode()).fetchall()
