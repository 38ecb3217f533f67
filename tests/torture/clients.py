"""Clients of the computes, through the proxy: writers and readers."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from tests.torture.actor import Actor
from tests.torture.checked_api import CheckedApi
from tests.torture.world import World

Connection = psycopg.Connection[tuple[Any, ...]]

OWNER, DATABASE = "neondb_owner", "neondb"
# The branch of a session: its data directory has a unique name.
HERE = "split_part(current_setting('data_directory'), '/', -2)"
CREATE = "CREATE TABLE IF NOT EXISTS written (number bigint PRIMARY KEY)"
INSERT = f"INSERT INTO written VALUES (%s) RETURNING {HERE}"
SELECT = f"SELECT {HERE}, coalesce(array_agg(number), '{{}}') FROM written"
# Seconds: longer than the proxy waits for a branch that is being made (its `branch_timeout`).
CONNECTS_WITHIN = 360
# SQLSTATEs that show an error of the server, whatever was killed: wrong data, wrong answers.
MISTAKES = re.compile("XX00[12]|22.*|23.*|58P0[12]")


@dataclass(frozen=True)
class Target:
    """How to connect to an endpoint."""

    project_id: str
    endpoint_id: str
    password: str
    pooled: bool = False
    tls: bool = True

    def connect(self, port: int) -> Connection:
        name = self.endpoint_id + ("-pooler" if self.pooled else "")
        by_option: dict[str, Any] = {"host": "127.0.0.1", "options": f"endpoint={name}"}
        by_name: dict[str, Any] = {"host": f"{name}.localhost", "hostaddr": "127.0.0.1"}
        return psycopg.connect(
            **(by_name if self.tls else by_option),
            port=port,
            user=OWNER,
            password=self.password,
            dbname=DATABASE,
            sslmode="require" if self.tls else "disable",
            connect_timeout=CONNECTS_WITHIN,
            autocommit=True,
            # PgBouncer in transaction mode does not keep prepared statements for a session.
            prepare_threshold=None,
        )


class Client(Actor):
    """Connects to one endpoint after another, with the password that the API reveals."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.apis = {key: CheckedApi(self, key) for key in world.keys}

    def act(self) -> None:
        target = self.find_target()
        if target is None:
            self.rest(0.2, 1.0)
            return
        # The session's branch is compared with all branches to which the endpoint was moved by
        # then.
        self.does(f"connect to {target.endpoint_id}")
        try:
            with target.connect(self.world.service.stack.proxy_port) as connection:
                self.visit(target, connection)
        except psycopg.Error as error:
            self.tell(target, error)
            self.rest(0.05, 1.0)

    def visit(self, target: Target, connection: Connection) -> None:
        raise NotImplementedError

    def find_target(self) -> Target | None:
        projects = self.world.known_projects()
        if not projects:
            return None
        project_id = self.chance.choice(list(projects))
        api = self.apis[projects[project_id]]
        path = f"/projects/{project_id}"
        endpoints = (api.get(f"{path}/endpoints") or {"endpoints": []})["endpoints"]
        if not endpoints:
            return None
        endpoint = self.chance.choice(endpoints)
        self.world.possible_branches[endpoint["id"]].add(endpoint["branch_id"])
        role = f"{path}/branches/{endpoint['branch_id']}/roles/{OWNER}"
        revealed = api.get(f"{role}/reveal_password")
        if revealed is None:
            return None
        pooled = endpoint["pooler_enabled"] or self.chance.random() < 0.3
        tls = self.chance.random() < 0.5
        return Target(project_id, endpoint["id"], revealed["password"], pooled=pooled, tls=tls)

    def tell(self, target: Target, error: psycopg.Error) -> None:
        """Count an error by its SQLSTATE, or by its message without names and numbers."""
        words = str(error).strip().split("\n")[-1]
        kind = error.sqlstate or re.sub(r"[\w-]*\d[\w.-]*|\"[^\"]*\"", "…", words)[-70:]
        self.world.journal.count("client errors", kind)
        told = f"{target.endpoint_id} {error.sqlstate}: {str(error).strip()[:300]}"
        self.note("client error", target=target.endpoint_id, words=told, during=self.doing[0])
        if error.sqlstate and MISTAKES.fullmatch(error.sqlstate):
            self.world.journal.broken("a client gets no wrong answer", told)
        if isinstance(error, psycopg.errors.ConnectionTimeout):
            self.world.journal.broken("nobody is left hanging", told)

    def has_come_to(self, target: Target, branch_id: str) -> None:
        """Check that the endpoint was moved to the branch on which the session is."""
        if branch_id not in self.world.possible_branches[target.endpoint_id]:
            told = f"{target.endpoint_id} led to {branch_id}"
            self.world.journal.broken("an endpoint leads to its branch", told)


class Writer(Client):
    """Writes numbered rows, and records those whose commit was acknowledged."""

    def visit(self, target: Target, connection: Connection) -> None:
        self.note("writes", target=target.endpoint_id, pooled=target.pooled, tls=target.tls)
        self.does(f"create the table by {target.endpoint_id}")
        with suppress(psycopg.errors.UniqueViolation):  # another writer has just created it
            connection.execute(CREATE)
        for _ in range(self.chance.randrange(5, 60)):
            if self.world.over.is_set():
                return
            count = self.chance.choice([1, 1, 1, 3, 20])
            numbers = self.world.ledger.new_numbers(target.project_id, count)
            self.does(f"write by {target.endpoint_id}")
            branch_id = self._write(connection, numbers)
            self.world.ledger.acknowledge(branch_id, numbers)
            self.world.journal.count("rows", "acknowledged", count)
            self.has_come_to(target, branch_id)
            if self.chance.random() < 0.2:
                self._note_moment(target, connection)
            # At times long enough for the endpoint to be suspended under the connection.
            self.rest(*((0.02, 0.3) if self.chance.random() < 0.93 else (2.0, 8.0)))

    def _note_moment(self, target: Target, connection: Connection) -> None:
        """Record the present as a moment that users may go back to. It is a position in the log,
        because clocks are shifted."""
        mark = self.world.ledger.mark()
        branch_id, lsn = one_row(connection, f"SELECT {HERE}, pg_current_wal_flush_lsn()::text")
        self.world.ledger.note_moment(target.project_id, branch_id, lsn, mark)

    def _write(self, connection: Connection, numbers: Sequence[int]) -> str:
        """Commit the rows, and return the branch on which they are."""
        here = ""
        with connection.transaction():
            for number in numbers:
                (here,) = one_row(connection, INSERT, number)
        return here


class Reader(Client):
    """Checks that rows that were acknowledged before it connected exist."""

    def visit(self, target: Target, connection: Connection) -> None:
        for _ in range(self.chance.randrange(1, 4)):
            mark = self.world.ledger.mark()
            self.does(f"read by {target.endpoint_id}")
            branch_id, rows = read(connection)
            self.has_come_to(target, branch_id)
            if missing := self.world.ledger.must_hold(branch_id, mark) - rows:
                told = f"{branch_id} by {target.endpoint_id}: {sorted(missing)[:20]}"
                self.world.journal.broken("an acknowledged row is there", told)
            if strangers := self.world.ledger.never_written(target.project_id, rows):
                told = f"{branch_id} by {target.endpoint_id}: {strangers[:20]}"
                self.world.journal.broken("nobody's rows go astray", told)
            self.world.journal.count("reads", "complete")
            self.rest(0.1, 1.5)


def read(connection: Connection) -> tuple[str, set[int]]:
    """Return the session's branch, and the rows on it."""
    try:
        here, numbers = one_row(connection, SELECT)
    except psycopg.errors.UndefinedTable:
        return str(one_row(connection, f"SELECT {HERE}")[0]), set()
    return here, set(numbers)


def one_row(connection: Connection, query: str, *parameters: Any) -> tuple[Any, ...]:
    row = connection.execute(query.encode(), parameters).fetchone()
    assert row is not None
    return row
