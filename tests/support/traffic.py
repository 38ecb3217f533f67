"""Clients of an endpoint that come, stay and go in threads, and note every error that they get."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import psycopg

from tests.support.place import Place


@dataclass
class Seen:
    """`longest` is the longest time, in seconds, that a connect with its query, or a transaction,
    has taken. Failures are not timed."""

    count: int = 0
    longest: float = 0.0
    errors: list[str] = field(default_factory=list)


class Traffic:
    """While the block lasts, each `Place` (a project with its endpoint and password) has clients of
    these kinds, which pause for `pause` seconds after each query or transaction:

    - `connects`: connects, runs a query, and disconnects; both directly and through the pooler;
    - `pooled`: two clients that stay connected through the pooler, one with TLS and one without,
      and run transactions of two queries;
    - `direct`: stays connected directly, and runs the same transactions.
    """

    def __init__(self, places: Sequence[Place], *, pause: float = 0.05) -> None:
        self._places = places
        self._pause = pause
        self._over = threading.Event()
        self.seen = {kind: Seen() for kind in ("connects", "pooled", "direct")}
        self._threads = [
            threading.Thread(target=self._note, args=(kind, work, place))
            for place in places
            for kind, work in (
                ("connects", self._connect),
                ("pooled", self._stay_pooled),
                ("pooled", self._stay_pooled_plain),
                ("direct", self._stay_direct),
            )
        ]

    @property
    def errors(self) -> list[str]:
        return [f"{kind}: {error}" for kind, seen in self.seen.items() for error in seen.errors]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Lets all clients leave. May be called again."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _note(self, kind: str, work: Callable[[Place, Seen], None], place: Place) -> None:
        seen = self.seen[kind]
        while not self._over.is_set():
            try:
                work(place, seen)
            except psycopg.Error as error:
                at = time.strftime("%H:%M:%S")
                seen.errors.append(f"{at} {type(error).__name__}: {str(error).strip()}")
                self._over.wait(self._pause)

    def _timed(self, seen: Seen, work: Callable[[], object]) -> None:
        began = time.monotonic()
        work()
        seen.count += 1
        seen.longest = max(seen.longest, time.monotonic() - began)
        self._over.wait(self._pause)

    def _connect(self, place: Place, seen: Seen) -> None:
        pooled = bool(seen.count % 2)
        self._timed(seen, lambda: place.query("SELECT 1", pooled=pooled))

    def _stay_pooled(self, place: Place, seen: Seen) -> None:
        self._stay(place, seen, pooled=True, tls=True)

    def _stay_pooled_plain(self, place: Place, seen: Seen) -> None:
        self._stay(place, seen, pooled=True, tls=False)

    def _stay_direct(self, place: Place, seen: Seen) -> None:
        self._stay(place, seen, pooled=False, tls=True)

    def _stay(self, place: Place, seen: Seen, *, pooled: bool, tls: bool) -> None:
        with place.connect(pooled=pooled, tls=tls) as connection:

            def work() -> None:
                with connection.transaction():
                    connection.execute("SELECT 1")
                    connection.execute("SELECT 2")

            while not self._over.is_set():
                self._timed(seen, work)
