"""A writer that records what its table held at each moment, for comparison with recovered moments.

All commits are the writer's own and come one after another, so what it records is exact.
"""

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from controlplane.compute.host.wal import lsn_text, parse_lsn
from tests.support.place import Connection, Place
from tests.support.waiting import wait_for

# Flushed log only: a crash may give other positions to log that was not flushed.
NOW = "SELECT clock_timestamp(), pg_current_wal_flush_lsn()::text"
BULK = 3 << 20  # bytes


@dataclass(frozen=True)
class Held:
    """What the table held from one moment to another, by the compute's clock and in its log."""

    rows: frozenset[int]
    since: datetime
    until: datetime
    first_lsn: int
    last_lsn: int

    def moment(self, chance: random.Random) -> datetime:
        """A random time within it."""
        microseconds = (self.until - self.since) // timedelta(microseconds=1)
        return self.since + timedelta(microseconds=chance.randint(0, microseconds))

    def position(self, chance: random.Random) -> int:
        """A random position in the log within it."""
        return chance.randint(self.first_lsn, self.last_lsn)


class Recorder:
    """Writes to one branch with pauses, over connections that `connect` opens, and records every
    state of its table. It reconnects whenever its connection ends."""

    def __init__(self, connect: Callable[[], Connection], *, seed: int = 1) -> None:
        self.connect = connect
        self.held: list[Held] = []
        self._random = random.Random(seed)
        self._number = 0

    def write(self, connection: Connection, count: int = 1) -> None:
        """Commit so many changes, and record the state after each."""
        for _ in range(count):
            self._let_pass(connection)
            statement, rows = self._change()
            connection.execute(statement.encode())
            self._record(connection, rows)
        self._let_pass(connection)

    def begin(self, connection: Connection) -> None:
        """Make the table if it is missing, and record what it holds."""
        connection.execute("CREATE TABLE IF NOT EXISTS recorded (number int)")
        self._record(connection, rows_in(connection))

    @contextlib.contextmanager
    def in_background(self) -> Iterator[None]:
        """Write in a thread while the block lasts."""
        over = threading.Event()
        thread = threading.Thread(target=self._go_on, args=(over,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(120)
            assert not thread.is_alive(), "the writer does not end"

    def _go_on(self, over: threading.Event) -> None:
        while not over.is_set():
            with contextlib.suppress(psycopg.Error), self.connect() as connection:
                self.begin(connection)
                while not over.wait(self._random.uniform(0, 0.1)):
                    self.write(connection)
            over.wait(0.1)

    def _change(self) -> tuple[str, frozenset[int]]:
        rows = self.held[-1].rows
        self._number += 1
        statement = f"INSERT INTO recorded VALUES ({self._number})"
        kind = self._random.random()
        if kind < 0.15 and rows:
            doomed = self._random.choice(sorted(rows))
            return f"DELETE FROM recorded WHERE number = {doomed}", rows - {doomed}
        if kind < 0.25:
            statement += f"; SELECT pg_logical_emit_message(false, 'bulk', repeat('x', {BULK}))"
        return statement, rows | {self._number}

    def _record(self, connection: Connection, rows: frozenset[int]) -> None:
        at, lsn = now_in(connection)
        self.held.append(Held(rows, at, at, lsn, lsn))

    def _let_pass(self, connection: Connection) -> None:
        """Note that the table still holds what it held."""
        at, lsn = now_in(connection)
        self.held[-1] = replace(self.held[-1], until=at, last_lsn=lsn)


def now_in(connection: Connection) -> tuple[datetime, int]:
    row = connection.execute(NOW).fetchone()
    assert row is not None
    return row[0].astimezone(UTC), parse_lsn(row[1])


def rows_in(connection: Connection) -> frozenset[int]:
    return frozenset(number for (number,) in connection.execute("SELECT number FROM recorded"))


def named(moment: datetime | int) -> dict[str, str]:
    """The field of a request for a branch that names the moment: a time or a position."""
    if isinstance(moment, datetime):
        return {"parent_timestamp": moment.isoformat()}
    return {"parent_lsn": lsn_text(moment)}


@dataclass(frozen=True)
class Chain:
    """What the service has published of one piece of a branch's history."""

    first_at: datetime
    first_lsn: int
    last_at: datetime
    last_lsn: int
    ended_at: datetime | None

    def has_position(self, lsn: int) -> bool:
        return self.first_lsn <= lsn and (self.ended_at is None or lsn <= self.last_lsn)


class Written:
    """A branch of a project that a recorder writes to, through the proxy."""

    def __init__(self, project: Place, branch_id: str, endpoint_id: str, *, seed: int) -> None:
        self.project = project
        self.branch_id = branch_id
        self.endpoint_id = endpoint_id
        self.recorder = Recorder(self.connect, seed=seed)

    def connect(self) -> Connection:
        return self.project.connect(tls=False, options=f"endpoint={self.endpoint_id}")

    def chains(self) -> list[Chain]:
        with self.project.stack.database() as metadata:
            rows = metadata.execute(
                "SELECT first_at, first_lsn, last_at, last_lsn, ended_at"
                " FROM controlplane_historychain WHERE branch_id = %s ORDER BY number",
                [self.branch_id],
            ).fetchall()
        return [Chain(*row) for row in rows]

    def commits(self, count: int) -> None:
        """Wait until so many more states were recorded."""
        goal = len(self.recorder.held) + count
        wait_for(lambda: len(self.recorder.held) >= goal, "commits", timeout=90)

    def post(self, moment: datetime | int) -> Any:
        """The response to a request for a branch of the moment."""
        body = {"branch": {"parent_id": self.branch_id, **named(moment)}}
        return self.project.client.another().call(
            "POST", f"{self.project.path}/branches", json=body
        )

    def replace_data(self, **body: str) -> None:
        """Restore the branch, from its own past or from another branch."""
        path = self.project.branch_path(self.branch_id, "/restore")
        self.project.done(self.project.client.another().post(path, body), timeout=180)

    def restore_to(self, moment: datetime) -> None:
        """Restore the branch from its own past."""
        self.replace_data(
            source_branch_id=self.branch_id,
            source_timestamp=moment.isoformat(),
            preserve_under_name=f"before {moment.isoformat()}",
        )

    def gaps(self) -> Any:
        path = self.project.branch_path(self.branch_id, "/history")
        return self.project.client.another().get(path)["history"]["gaps"]

    def kill_compute(self) -> None:
        """Kill the branch's Postgres. The recorder's next connection starts it again."""
        wait_for(lambda: self.project.is_running(self.endpoint_id), "the compute", timeout=60)
        self.project.postmaster(self.branch_id).kill()
