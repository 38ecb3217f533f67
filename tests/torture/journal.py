"""The record of a run: every action with its time, counts of results, and each invariant that
broke."""

import json
import re
import threading
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# An id of a resource, an operation or a request in any text.
ID = re.compile(
    r"\b(?:(?:ep|br)-[a-z]+-[a-z]+-\d{6,}"
    r"|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\b"
)
MOST_BREAKS = 50
# The most characters that are printed; the journal has the whole text.
LONGEST_LINE = 500


@dataclass(frozen=True)
class Break:
    """An invariant that broke. `detail` gives the reason."""

    time: str
    invariant: str
    detail: str

    @property
    def ids(self) -> list[str]:
        return list(dict.fromkeys(ID.findall(self.detail)))

    def __str__(self) -> str:
        return f"{self.time} {self.invariant}: {self.detail}"


class Journal:
    """Written by every actor's thread, as one JSON object per line in `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.breaks: list[Break] = []
        self._counts: dict[str, Counter[str]] = {}
        self._known: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._file = path.open("w", buffering=1)

    def close(self) -> None:
        """Close the file. Counts can still be read, but nothing more can be written."""
        self._file.close()

    def note(self, actor: str, action: str, **fields: Any) -> None:
        """Record an action or its result."""
        line = json.dumps({"time": now(), "actor": actor, "action": action, **fields}, default=str)
        with self._lock:
            self._file.write(line + "\n")

    def count(self, kind: str, what: str, number: int = 1) -> None:
        with self._lock:
            self._counts.setdefault(kind, Counter())[what] += number

    def broken(self, invariant: str, detail: str) -> None:
        """Record that the invariant broke. The same break is recorded once."""
        with self._lock:
            if (invariant, detail) in self._known or len(self.breaks) >= MOST_BREAKS:
                return
            self._known.add((invariant, detail))
            self.breaks.append(Break(now(), invariant, detail))
        self.note("invariants", "broken", invariant=invariant, detail=detail)
        print(f"BROKEN {str(self.breaks[-1])[:LONGEST_LINE]}", flush=True)

    def total(self, kind: str) -> int:
        with self._lock:
            return sum(self._counts.get(kind, Counter()).values())

    def counts(self, kind: str) -> str:
        """Return the counts of a kind, the most frequent first."""
        with self._lock:
            found = self._counts.get(kind, Counter()).most_common()
        return ", ".join(f"{what} {number}" for what, number in found) or "none"

    def evidence(self, broken: Break, log_dir: Path, *, most: int = 40) -> list[str]:
        """Return the last lines of this journal and of the service's logs with the ids in the
        break."""
        found = []
        for path in (self.path, *sorted(log_dir.glob("*.log*"))):
            lines = [
                line
                for line in path.read_text(errors="replace").splitlines()
                if any(one in line for one in broken.ids)
            ]
            found += [f"{path.name}: {line[:600]}" for line in lines[-most:]]
        return found


def now() -> str:
    """Return the time in the format of the service's logs."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
