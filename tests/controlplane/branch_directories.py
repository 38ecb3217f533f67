"""Directories of branches that change while they are read."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def coming_and_going(branches: Path) -> Iterator[None]:
    """Create and remove branches there, one after the other, while the block lasts."""
    ended = threading.Event()

    def come_and_go() -> None:
        while not ended.is_set():
            for number in range(20):
                (branches / f"br-{number}").mkdir()
            for number in range(20):
                (branches / f"br-{number}").rmdir()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
