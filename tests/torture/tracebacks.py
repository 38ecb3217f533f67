"""The tracebacks in the service's logs, and which of them are no mistake."""

import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

from tests.torture.journal import Journal


def tracebacks(state_dir: Path, is_excused: Callable[[str], bool]) -> Iterator[str]:
    """Each line with one that nothing excuses: its beginning, and its end."""
    for path in (*state_dir.glob("log/*.log*"), state_dir / "up.log"):
        for line in path.read_text(errors="replace").splitlines():
            if "Traceback" in line and not is_excused(line):
                yield f"{path.name}: {line[:300]} … {line[-700:]}"


class Excuses:
    """Tracebacks of whoever asked the metadata database while that was struck: it says of each
    request and round that it failed, and why."""

    _OF_METADATA = re.compile(r"\b(OperationalError|InterfaceError|PoolTimeout|ConnectorException)")
    # Seconds after a blow, within which the metadata may take to come up again.
    _AFTER = timedelta(seconds=30)

    def __init__(self, journal: Journal) -> None:
        self.struck = [
            datetime.fromisoformat(found[1])
            for line in journal.path.read_text().splitlines()
            if '"actor": "chaos"' in line
            and ('"what": "metadata"' in line or '"action": "restart"' in line)
            and (found := re.search(r'"time": "([^"]+)"', line))
        ]

    def __call__(self, line: str) -> bool:
        found = re.search(r"\d{4}-\d\d-\d\dT[\d:.]+Z", line)
        if not found or not self._OF_METADATA.search(line):
            return False
        time = datetime.fromisoformat(found[0])
        return any(struck <= time <= struck + self._AFTER for struck in self.struck)
