"""Moves of projects between a service's hosts."""

import threading
import time
from contextlib import suppress
from typing import Any

import psycopg

from tests.support.client import ENDED, Client
from tests.support.place import Place
from tests.support.second_host import hosts
from tests.support.stack import Stack
from tests.support.waiting import wait_for

ROWS = 60_000
LARGE = f"CREATE TABLE large AS SELECT repeat('x', 1000) FROM generate_series(1, {ROWS})"
# Finds the operation that starts the endpoint on the other host, while its clients wait.
HANDING_OVER = """
SELECT FROM controlplane_operation WHERE endpoint_id = %s AND details ? 'moving'
    AND status IN ('scheduling', 'running', 'cancelling')
"""


def move(place: Place, to: str) -> str:
    """Begin to move the project. Returns the operation's id."""
    done = hosts(place.stack, "move", place.id, "--to", to)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[2]


def move_by_api(place: Place, to: str) -> str:
    """Begin to move the project as an operator, who can cancel it. Returns the operation's id."""
    operator = Client(place.stack.api_url, (place.stack.state_dir / "api-key").read_text().strip())
    answer = operator.post(f"{place.path}/move", {"host_id": to})
    (moving,) = (one for one in answer["operations"] if one["action"] == "move_project")
    return str(moving["id"])


def operation(place: Place, operation_id: str) -> Any:
    return place.client.get(f"{place.path}/operations/{operation_id}")["operation"]


def await_end(place: Place, operation_id: str, status: str = "finished") -> Any:
    wait_for(lambda: operation(place, operation_id)["status"] in ENDED, "the end of the move")
    ended = operation(place, operation_id)
    assert ended["status"] == status, ended
    return ended


def living_on(place: Place) -> Any:
    with place.stack.database() as database:
        row = database.execute("SELECT host_id FROM controlplane_project WHERE id = %s", [place.id])
        return row.fetchone()[0]  # type: ignore[index]


def is_moving(place: Place, operation_id: str, step: str) -> bool:
    """Return whether the move has come to this step."""
    return any(one["name"] == step for one in operation(place, operation_id)["steps"])


def await_step(place: Place, operation_id: str, step: str) -> None:
    wait_for(lambda: is_moving(place, operation_id, step), f"the step {step}")


def await_any_end(place: Place, operation_id: str) -> None:
    wait_for(
        lambda: operation(place, operation_id)["status"] in ENDED, "the move's end", timeout=120
    )


def await_removal(host: Stack, branch_id: str) -> None:
    wait_for(lambda: not on_disk(host, branch_id), "the branch to be removed from the host")


def await_known(place: Place) -> None:
    """Wait until all processes of the first host's proxy, which may know an earlier second host of
    the same name, have read where the present one is."""
    reached = "the first host's proxy to reach the second host"
    wait_for(lambda: all(place.is_served() for _ in range(8)), reached)


def on_disk(host: Stack, branch_id: str) -> bool:
    return any((host.state_dir / "branches").glob(f"*{branch_id}*"))


def await_handing_over(place: Place) -> None:
    """Return at the moment at which the endpoint's compute is stopped for the other host."""
    deadline = time.monotonic() + 60
    with place.stack.database() as database:
        while not database.execute(HANDING_OVER, [place.endpoint_id]).rowcount:
            assert time.monotonic() < deadline, "the compute was not stopped"
            time.sleep(0.002)


class Writer:
    """Inserts numbers one by one, and connects again when it loses its connection. With each comes
    a text of `size` bytes, which does not compress."""

    def __init__(self, place: Place, *, size: int = 0) -> None:
        self._place = place
        parts = f"generate_series(1, {size // 32})"
        self._words = f"(SELECT string_agg(md5(random()::text), '') FROM {parts})"
        self._stopped = threading.Event()
        self.acknowledged = 0
        self.longest_pause = 0.0
        with place.connect() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS written (n int, words text)")
        self._already = self._count()

    def __enter__(self) -> "Writer":
        self._thread = threading.Thread(target=self._write)
        self._thread.start()
        wait_for(lambda: self.acknowledged > 20, "the client to write")
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(60)

    def await_more(self) -> None:
        before = self.acknowledged
        wait_for(lambda: self.acknowledged > before + 20, "the client to write on")

    def check(self) -> None:
        """A row whose acknowledgement was lost may be there twice; none may be missing."""
        assert self._count() - self._already >= self.acknowledged
        (distinct,) = self._place.query("SELECT count(DISTINCT n) FROM written")
        assert distinct >= self.acknowledged

    def _count(self) -> int:
        return int(self._place.query("SELECT count(*) FROM written")[0])

    def _write(self) -> None:
        last = time.monotonic()
        while not self._stopped.is_set():
            with suppress(psycopg.Error), self._place.connect() as connection:
                while not self._stopped.is_set():
                    connection.execute(
                        f"INSERT INTO written VALUES (%s, {self._words})".encode(),
                        [self.acknowledged],
                    )
                    now = time.monotonic()
                    self.longest_pause = max(self.longest_pause, now - last)
                    self.acknowledged, last = self.acknowledged + 1, now
