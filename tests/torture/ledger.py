"""Records which rows were acknowledged on which branch. These must exist as long as the branch."""

import itertools
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence

# The number of rows that each branch had acknowledged at one moment.
Mark = Mapping[str, int]


class Ledger:
    """Rows are numbers that are used once. Every actor's thread calls these methods.

    A copy of a branch is recorded by its name before it is requested, because the response with its
    id may be lost. The copy must contain what its parent had acknowledged at that moment.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._project_of: dict[int, str] = {}
        self._rows: defaultdict[str, list[int]] = defaultdict(list)
        # For each copy, by its name and by its id: its parent, and how many of the parent's rows it
        # must contain. A name is used once.
        self._expected: dict[str, tuple[str, int]] = {}
        self._expected_of: dict[str, tuple[str, int]] = {}
        self._lock = threading.Lock()

    def new_numbers(self, project_id: str, count: int) -> list[int]:
        """Return numbers for rows that are about to be written on some branch of the project."""
        with self._lock:
            numbers = list(itertools.islice(self._numbers, count))
            self._project_of.update(dict.fromkeys(numbers, project_id))
        return numbers

    def acknowledge(self, branch_id: str, numbers: Sequence[int]) -> None:
        with self._lock:
            self._rows[branch_id].extend(numbers)

    def expect_copy(self, name: str, parent_id: str) -> None:
        """Record that a copy of the parent is about to be requested under this name."""
        with self._lock:
            self._expected[name] = (parent_id, len(self._rows[parent_id]))

    def note_branch(self, branch_id: str, name: str) -> None:
        """Record the id of a branch that the API has returned. May be called again for it."""
        with self._lock:
            if name in self._expected:
                self._expected_of.setdefault(branch_id, self._expected[name])

    def mark(self) -> Mark:
        with self._lock:
            return {branch_id: len(rows) for branch_id, rows in self._rows.items()}

    def must_hold(self, branch_id: str, mark: Mark | None = None) -> set[int]:
        """Return the rows that the branch must contain: those acknowledged on it, until `mark` or
        until now, and those that were copied from its parent."""
        with self._lock:
            count = len(self._rows[branch_id]) if mark is None else mark.get(branch_id, 0)
            rows = set(self._rows[branch_id][:count])
            while expected := self._expected_of.get(branch_id):
                branch_id, count = expected
                rows.update(self._rows[branch_id][:count])
        return rows

    def written_on(self, branch_id: str) -> int:
        """Return how many rows were acknowledged on the branch."""
        with self._lock:
            return len(self._rows[branch_id])

    def never_written(self, project_id: str, numbers: set[int]) -> list[int]:
        """Return those of the numbers that were never written in the project."""
        with self._lock:
            return sorted(one for one in numbers if self._project_of.get(one) != project_id)

    def branches(self) -> set[str]:
        """Return the branches on which rows were acknowledged."""
        with self._lock:
            return {branch_id for branch_id, rows in self._rows.items() if rows}
