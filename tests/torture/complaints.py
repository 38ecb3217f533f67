"""Errors in the service's logs, except those that a strike explains."""

import json
import re
from collections import Counter
from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path

from tests.torture.ground import DISK
from tests.torture.journal import Journal

TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
# Where it happened, and the exception, which a traceback names at its end.
LOGGER, MESSAGE = re.compile(r" logger=(\S+)"), re.compile(r' message="?([^"(<\\]*)')
EXCEPTION = re.compile(r"\\n([\w.]+(?:Error|Exception|[A-Z]\w+))(?:: [^\"]*)?\\?\"[^\"]*$")


TAKEN_FOR_DEAD = "worker of a job exited, job retried"


def complaints(state_dir: Path, journal: Journal) -> list[tuple[str, str]]:
    """Return each invariant that the logs show as broken, with the reason."""
    excuses = Excuses(journal)
    tracebacks, accusations = Kinds(), Kinds()
    for path in (*sorted(state_dir.glob("log/*.log*")), state_dir / "up.log"):
        for line in path.read_text(errors="replace").splitlines():
            if "Traceback" in line and not excuses.of_trace(line):
                tracebacks.add(path, line)
            if TAKEN_FOR_DEAD in line and not excuses.of_silence(line):
                accusations.add(path, line)
    return [
        *(("no log holds a traceback", told) for told in tracebacks.told()),
        *(("no living worker is taken for dead", told) for told in accusations.told()),
    ]


class Kinds:
    """Lines by their kind, with their number and the first of each."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}

    def add(self, path: Path, line: str) -> None:
        kind = f"{path.name}: {_kind_of(line)}"
        self._counts[kind] += 1
        self._examples.setdefault(kind, f"{line[:250]} … {line[-600:]}")

    def told(self) -> list[str]:
        return [
            f"{kind}, {count} times: {self._examples[kind]}"
            for kind, count in self._counts.most_common()
        ]


def _kind_of(line: str) -> str:
    found = (pattern.search(line) for pattern in (LOGGER, MESSAGE, EXCEPTION))
    return " ".join(match[1].strip() for match in found if match)


class Excuses:
    """Which errors a strike explains, for some seconds after it."""

    # A process that uses the metadata database while it is struck logs the error and tries again.
    _OF_METADATA = re.compile(r"\b(OperationalError|InterfaceError|PoolTimeout|ConnectorException)")
    _OF_DISK = re.compile("No space left on device|DiskFull|NotEnoughSpace")
    # So does a process that works on a compute that is struck.
    _OF_COMPUTE = re.compile(
        r'message="attempt failed".*\\n'
        r"((psycopg\.[\w.]+|[\w.]*\."
        r"(StartFailed|StopFailed|OutOfPatience|LockTimeout|CopyInterrupted)): "
        # A struck session, a struck Postgres that recovers the past, a program killed beside it.
        r"|[\w.]*\.NotApplied: .*(server closed the connection|terminating connection)"
        r"|[\w.]*\.NotRecovered: the recovered Postgres did not shut down in order"
        r"|[\w.]*\.LogUnreadable: pg_waldump exited with -)"
    )
    # Within this time the metadata database is up again, and a worker's heartbeat has arrived.
    _METADATA_BACK, _WORKER_HEARD = timedelta(seconds=30), timedelta(seconds=25)
    # Within this time the whole service has stopped and started again on a busy machine.
    _RESTARTED = timedelta(seconds=40)

    def __init__(self, journal: Journal) -> None:
        notes = [
            note
            for note in map(json.loads, journal.path.read_text().splitlines())
            if note["actor"] == "chaos" and "what" in note
        ]
        self._blows = [
            (datetime.fromisoformat(note["time"]), note["action"], note["what"]) for note in notes
        ]
        # The most by which the log's times may differ from the journal's.
        self._shifts = {timedelta(seconds=note.get("shift", 0)) for note in notes} | {timedelta()}

    def of_trace(self, line: str) -> bool:
        if self._OF_COMPUTE.search(line):
            return True
        if self._OF_DISK.search(line):
            return self._follows(line, {DISK}, within=self._METADATA_BACK)
        return bool(self._OF_METADATA.search(line)) and self._follows(
            line, {"metadata", DISK}, within=self._METADATA_BACK
        )

    def of_silence(self, line: str) -> bool:
        parts = {"worker", "metadata", "supervisor"}
        return self._follows(line, parts, within=self._WORKER_HEARD)

    def _follows(self, line: str, parts: Collection[str], *, within: timedelta) -> bool:
        """Return whether one of the parts, or the whole service, was struck shortly before."""
        found = TIME.search(line)
        if found is None:
            return False
        times = [datetime.fromisoformat(found[0]) - shift for shift in self._shifts]
        return any(
            at <= time <= at + (within + self._RESTARTED if action == "restart" else within)
            for at, action, what in self._blows
            if what in parts or action == "restart"
            for time in times
        )
