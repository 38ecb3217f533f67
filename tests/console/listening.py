"""Readers of the live channel: a page of a person, and a watch without a page."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from console.api.changes import ChangeCalls
from console.live import watches
from tests.console.conftest import Person


@contextmanager
def listening(person: Person, url: str) -> Iterator[list[str]]:
    """Yields the list of what the channel at `url` sends to a page. It grows while the block
    lasts."""
    answer = person.get(url)
    assert answer["Content-Type"].startswith("text/event-stream")
    assert not answer.has_header("Content-Encoding")
    received: list[str] = []

    def hear() -> None:
        for piece in answer.streaming_content:
            received.append(piece.decode())  # noqa: PERF401 # in the order of arrival
        received.append("")

    thread = threading.Thread(target=hear, daemon=True)
    thread.start()
    yield received
    for watch in watches._watches.values():
        watch.end()
    thread.join(10)
    assert not thread.is_alive()


def watching(calls: ChangeCalls, project_id: str) -> Any:
    return watches.watching(calls, project_id, threading.Event())


def changed(received: list[str]) -> int:
    return sum("data: changed" in piece for piece in received)
