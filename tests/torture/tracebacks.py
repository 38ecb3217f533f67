"""The tracebacks in the service's logs, and which of them are no mistake."""

import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from tests.torture.journal import Journal

TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
# What was at work, and what it met: the end of a trace names the exception.
LOGGER, MESSAGE = re.compile(r" logger=(\S+)"), re.compile(r' message="?([^"(<\\]*)')
EXCEPTION = re.compile(r"\\n([\w.]+(?:Error|Exception|[A-Z]\w+))(?:: [^\"]*)?\\?\"[^\"]*$")


def tracebacks(state_dir: Path, is_excused: Callable[[str], bool]) -> list[str]:
    """Those that nothing excuses: how many of each kind, and one of them."""
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for path in (*sorted(state_dir.glob("log/*.log*")), state_dir / "up.log"):
        for line in path.read_text(errors="replace").splitlines():
            if "Traceback" in line and not is_excused(line):
                kind = _kind_of(line)
                counts[f"{path.name}: {kind}"] += 1
                examples.setdefault(f"{path.name}: {kind}", f"{line[:250]} … {line[-600:]}")
    return [f"{kind}, {count} times: {examples[kind]}" for kind, count in counts.most_common()]


def _kind_of(line: str) -> str:
    found = (pattern.search(line) for pattern in (LOGGER, MESSAGE, EXCEPTION))
    return " ".join(match[1].strip() for match in found if match)


class Excuses:
    """What a blow explains: who asked the metadata database while it was struck, or worked on a
    compute that was struck, says what it met, and tries again."""

    _OF_METADATA = re.compile(r"\b(OperationalError|InterfaceError|PoolTimeout|ConnectorException)")
    # Seconds after a blow, within which the metadata may take to come up again.
    _AFTER = timedelta(seconds=30)
    _OF_COMPUTE = re.compile(
        r'message="attempt failed".*\\n'
        r"(psycopg\.[\w.]+|[\w.]*\.(StartFailed|StopFailed|OutOfPatience|LockTimeout)): "
    )

    def __init__(self, journal: Journal) -> None:
        self.struck = [
            datetime.fromisoformat(found[0])
            for line in journal.path.read_text().splitlines()
            if '"actor": "chaos"' in line
            and ('"what": "metadata"' in line or '"action": "restart"' in line)
            and (found := TIME.search(line))
        ]

    def __call__(self, line: str) -> bool:
        if self._OF_COMPUTE.search(line):
            return True
        found = TIME.search(line)
        if not found or not self._OF_METADATA.search(line):
            return False
        time = datetime.fromisoformat(found[0])
        return any(struck <= time <= struck + self._AFTER for struck in self.struck)
