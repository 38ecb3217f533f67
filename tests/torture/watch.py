"""Checks about every second, behind the API, what must hold at any time."""

import time
from collections.abc import Sequence
from typing import Any

import psycopg

from tests.support.client import ENDED
from tests.torture import processes
from tests.torture.actor import Actor
from tests.torture.chaos import bring_up
from tests.torture.world import World

LONGEST = 100.0  # seconds that a single wait of an actor may last
# Checks between two checks of the whole of each table.
LOOKS = 8
TABLES = ("operation", "endpoint", "branch", "project")


class Watch(Actor):
    """Checks continuously, even while everything is down."""

    def __init__(self, world: World, actors: Sequence[Actor]) -> None:
        super().__init__(world, "watch")
        self.actors = actors
        # By table and id: the last updated_at and, for operations, the last status.
        self.seen: dict[tuple[str, str], tuple[Any, str]] = {}
        self.doubles: set[tuple[int, ...]] = set()
        self.looks = 0

    def act(self) -> None:
        self.look_at_up()
        self.look_for_two_on_one()
        self.look_for_the_stuck()
        self.looks += 1
        if self.looks % LOOKS == 1:
            try:
                self.look_at_rows()
            except psycopg.OperationalError:
                self.world.journal.count("looks", "metadata away")
        self.rest(0.8, 1.2)

    def look_at_up(self) -> None:
        """Check that `up` ends only when it is told to."""
        status = self.world.service.stack.process.poll()
        if status is None or not self.world.restarting.acquire(blocking=False):
            return
        try:
            status = self.world.service.stack.process.poll()
            if status is not None and not self.world.over.is_set():
                said = (self.world.state_dir / "up.log").read_text()[-1500:]
                self.world.journal.broken("`up` stays up", f"it ended with {status}: {said}")
                bring_up(self.world)
        finally:
            self.world.restarting.release()

    def look_for_two_on_one(self) -> None:
        """Check that no two Postgres run on one data directory. Both must be seen by two checks: a
        second one that the lock refuses has ended by then."""
        doubles = set()
        for branch_id, some in processes.postmasters(self.world.state_dir).items():
            if len(some) > 1:
                pids = tuple(sorted(process.pid for process in some))
                doubles.add(pids)
                if pids in self.doubles:
                    told = f"{branch_id}: processes {pids}"
                    self.world.journal.broken("one Postgres on a data directory", told)
        self.doubles = doubles

    def look_for_the_stuck(self) -> None:
        for actor in self.actors:
            what, since = actor.doing
            if actor.name == "chaos" or actor.is_over() or time.monotonic() - since < LONGEST:
                continue
            self.world.journal.broken("nobody is left hanging", f"{actor.name}: {what}")

    def look_at_rows(self) -> None:
        with psycopg.connect(
            host=str(self.world.state_dir / "sockets" / "metadata"),
            user="perch",
            dbname="perch",
            autocommit=True,
            connect_timeout=10,
        ) as connection:
            for table in TABLES:
                status = "status" if table == "operation" else "''"
                query = f"SELECT id::text, updated_at, {status} FROM controlplane_{table}"
                for row_id, updated_at, said in connection.execute(query.encode()):
                    self.compare(table, row_id, updated_at, said)

    def compare(self, table: str, row_id: str, updated_at: Any, status: str) -> None:
        before = self.seen.get((table, row_id))
        self.seen[table, row_id] = (updated_at, status)
        if before is None:
            return
        told = f"{table} {row_id}: {before[1]} {before[0]} and then {status} {updated_at}"
        if updated_at < before[0]:
            self.world.journal.broken("updated_at never goes back", told)
        if before[1] in ENDED and (updated_at, status) != before:
            self.world.journal.broken("a terminal status never changes", told)
