"""A writer that commits numbers through the proxy, to compare what is restored with."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import psycopg

from tests.support.place import Place
from tests.support.waiting import wait_for

BETWEEN = 0.05  # seconds


class Numbers(threading.Thread):
    """Commits the numbers from 1 on, and records the time of each commit. With `ends_with_service`,
    the service may end before the writer."""

    def __init__(self, place: Place, *, ends_with_service: bool = False) -> None:
        super().__init__()
        self.place = place
        self.ends_with_service = ends_with_service
        self.done_at: list[datetime] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        try:
            with self.place.connect() as connection:
                connection.execute("CREATE TABLE numbers (number int)")
                while not self.stopped.wait(BETWEEN):
                    number = len(self.done_at) + 1
                    connection.execute("INSERT INTO numbers VALUES (%s)", [number])
                    self.done_at.append(datetime.now(UTC))
        except psycopg.Error:
            if not self.ends_with_service:
                raise

    @contextmanager
    def writing(self) -> Iterator[None]:
        self.start()
        wait_for(lambda: len(self.done_at) > 10, "some rows")
        try:
            yield
        finally:
            self.stopped.set()
            self.join(30)
