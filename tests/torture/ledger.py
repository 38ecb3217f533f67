"""Which rows were acknowledged on which branch, and so must be there for ever."""

import itertools
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence

# How many rows each branch had acknowledged at a moment.
Mark = Mapping[str, int]


class Ledger:
    """Rows are numbers that are used once. Called from every actor's thread.

    A child is claimed by its name before it is asked for, as the answer with its id may be
    lost: from then on it must hold what its parent had acknowledged at that moment.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._project_of: dict[int, str] = {}
        self._rows: defaultdict[str, list[int]] = defaultdict(list)
        # By the child's name, which is used once: its parent, and how many of its rows.
        self._claims: dict[str, tuple[str, int]] = {}
        self._claim_of: dict[str, tuple[str, int]] = {}
        self._lock = threading.Lock()

    def new_numbers(self, project_id: str, count: int) -> list[int]:
        """Numbers for rows that are about to be written somewhere in the project."""
        with self._lock:
            numbers = list(itertools.islice(self._numbers, count))
            self._project_of.update(dict.fromkeys(numbers, project_id))
        return numbers

    def acknowledge(self, branch_id: str, numbers: Sequence[int]) -> None:
        with self._lock:
            self._rows[branch_id].extend(numbers)

    def claim(self, name: str, parent_id: str) -> None:
        """A child of that name is about to be asked for."""
        with self._lock:
            self._claims[name] = (parent_id, len(self._rows[parent_id]))

    def born(self, branch_id: str, name: str) -> None:
        """The branch was seen; harmless for one that is known."""
        with self._lock:
            if name in self._claims:
                self._claim_of.setdefault(branch_id, self._claims[name])

    def mark(self) -> Mark:
        with self._lock:
            return {branch_id: len(rows) for branch_id, rows in self._rows.items()}

    def must_hold(self, branch_id: str, mark: Mark | None = None) -> set[int]:
        """The rows that the branch must hold: those acknowledged on it, by the mark or ever,
        and what it was born with."""
        with self._lock:
            count = len(self._rows[branch_id]) if mark is None else mark.get(branch_id, 0)
            rows = set(self._rows[branch_id][:count])
            while claim := self._claim_of.get(branch_id):
                branch_id, count = claim
                rows.update(self._rows[branch_id][:count])
        return rows

    def written_on(self, branch_id: str) -> int:
        """How many rows were acknowledged there."""
        with self._lock:
            return len(self._rows[branch_id])

    def strangers(self, project_id: str, numbers: set[int]) -> list[int]:
        """Those that were never written in the project."""
        with self._lock:
            return sorted(one for one in numbers if self._project_of.get(one) != project_id)

    def branches(self) -> set[str]:
        """Those with acknowledged rows of their own."""
        with self._lock:
            return {branch_id for branch_id, rows in self._rows.items() if rows}
