"""Counts the bytes sent to the clients of each endpoint, for as long as they are connected, and
those received from all of them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from controlplane.metrics import figures

# An endpoint, and the branch that its clients were connected to.
Key = tuple[str, str]


class Tally:
    """Bytes sent and not yet reported. The relay adds to it with every message, so it is only a
    slot."""

    __slots__ = ("bytes", "clients")

    def __init__(self) -> None:
        self.bytes = 0
        self.clients = 0


# The bytes that all clients together have sent to their computes.
RECEIVED = Tally()


class Traffic:
    """Must be used within one event loop."""

    def __init__(self) -> None:
        self._tallies: dict[Key, Tally] = {}

    @contextmanager
    def counting(self, endpoint_id: str, branch_id: str) -> Iterator[Tally]:
        """Gives the tally that all of the endpoint's clients share, for one client's duration."""
        tally = self._tallies.setdefault((endpoint_id, branch_id), Tally())
        tally.clients += 1
        try:
            yield tally
        finally:
            tally.clients -= 1

    def take(self) -> Mapping[Key, int]:
        """Returns the bytes sent since the last call."""
        sent = {}
        for key, tally in list(self._tallies.items()):
            if tally.bytes:
                sent[key], tally.bytes = tally.bytes, 0
            elif not tally.clients:
                del self._tallies[key]
        figures.CLIENT_BYTES.labels("sent").inc(sum(sent.values()))
        figures.CLIENT_BYTES.labels("received").inc(RECEIVED.bytes)
        RECEIVED.bytes = 0
        return sent
