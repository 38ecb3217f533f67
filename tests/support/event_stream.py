"""A reader of a stream of events."""

import json
import time
from collections.abc import Iterator
from typing import Any, Self

import requests

from tests.support.client import Client


class EventReader:
    """An open stream. It is closed at the end of its block."""

    def __init__(
        self, client: Client, path: str = "/events", *, last_event_id: str = "", **query: Any
    ) -> None:
        headers = {"Accept": "text/event-stream", "Authorization": f"Bearer {client.key}"}
        if last_event_id:
            headers["Last-Event-ID"] = last_event_id
        self.response = requests.get(
            client.api_url + path, headers=headers, params=query, stream=True, timeout=30
        )
        # The id that a client sends when it reconnects.
        self.last_event_id = last_event_id
        # When the last event arrived, in seconds since 1970.
        self.arrived = 0.0
        self._lines = self.response.iter_lines(chunk_size=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.response.close()

    def begin(self) -> Self:
        """Wait until every later commit will be received."""
        assert self.response.status_code == 200, self.response.text
        assert self.response.headers["Content-Type"].startswith("text/event-stream")
        for line in self._lines:
            if not line:
                return self
            self._parse(line)
        raise AssertionError("the stream ended before it began")

    def events(self) -> Iterator[Any]:
        """Yield each event as it arrives, until the stream ends."""
        for line in self._lines:
            if (data := self._parse(line)) is not None:
                self.arrived = time.time()
                yield data

    def take(self, count: int) -> list[Any]:
        """Return the next `count` events."""
        coming = self.events()
        return [next(coming) for _ in range(count)]

    def _parse(self, line: bytes) -> Any:
        name, _, value = line.decode().partition(": ")
        if name == "id":
            self.last_event_id = value
        return json.loads(value) if name == "data" else None
