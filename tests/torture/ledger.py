"""Records which rows were acknowledged on which branch. These must exist as long as the branch."""

import random
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# The number of rows that each branch had acknowledged at one moment.
Mark = Mapping[str, int]


@dataclass(frozen=True)
class Copied:
    """What a copy of a branch has of it."""

    parent_id: str
    # How many of the rows that were acknowledged on the parent it must contain, from the first on.
    count: int
    # Of a copy of a past moment: the first number that nobody had used then.
    next_number: int | None = None


@dataclass(frozen=True)
class Moment:
    """A past moment of a branch: a position in its log, as Postgres writes it."""

    lsn: str
    copied: Copied


class Ledger:
    """Rows are numbers that are used once. Every actor's thread calls these methods.

    A copy of a branch is recorded by its name before it is requested, because the response with its
    id may be lost. The copy must contain what its parent had acknowledged at that moment.
    """

    def __init__(self) -> None:
        self._next_number = 1
        self._project_of: dict[int, str] = {}
        self._rows: defaultdict[str, list[int]] = defaultdict(list)
        # For each copy, by its name and by its id: what it may be a copy of. A restore adds to it,
        # because it may fail or be cancelled. A name is used once.
        self._expected: dict[str, Copied] = {}
        self._expected_of: defaultdict[str, list[Copied]] = defaultdict(list)
        self._moments: defaultdict[str, list[Moment]] = defaultdict(list)
        self._lock = threading.Lock()

    def new_numbers(self, project_id: str, count: int) -> list[int]:
        """Return numbers for rows that are about to be written on some branch of the project."""
        with self._lock:
            numbers = list(range(self._next_number, self._next_number + count))
            self._next_number += count
            self._project_of.update(dict.fromkeys(numbers, project_id))
        return numbers

    def acknowledge(self, branch_id: str, numbers: Sequence[int]) -> None:
        with self._lock:
            self._rows[branch_id].extend(numbers)

    def expect_copy(self, name: str, parent_id: str) -> None:
        """Record that a copy of the parent is about to be requested under this name."""
        with self._lock:
            self._expected[name] = Copied(parent_id, len(self._rows[parent_id]))

    def note_moment(self, project_id: str, branch_id: str, lsn: str, mark: Mark) -> None:
        """Record a past moment of the branch: `mark` was taken before its position was read."""
        with self._lock:
            copied = Copied(branch_id, mark.get(branch_id, 0), self._next_number)
            self._moments[project_id].append(Moment(lsn, copied))

    def any_moment(self, project_id: str, chance: random.Random) -> Moment | None:
        with self._lock:
            moments = self._moments[project_id]
            return chance.choice(moments) if moments else None

    def expect_moment(self, name: str, moment: Moment) -> None:
        """Record that a branch of the moment is about to be requested under this name."""
        with self._lock:
            self._expected[name] = moment.copied

    def expect_restore(self, branch_id: str, moment: Moment) -> None:
        """Record that a restore of the branch, which nobody writes to, is about to be requested."""
        with self._lock:
            self._expected_of[branch_id].append(moment.copied)

    def note_branch(self, branch_id: str, name: str) -> None:
        """Record the id of a branch that the API has returned. May be called again for it."""
        with self._lock:
            if name in self._expected:
                self._expected_of[branch_id].insert(0, self._expected.pop(name))

    def mark(self) -> Mark:
        with self._lock:
            return {branch_id: len(rows) for branch_id, rows in self._rows.items()}

    def must_hold(self, branch_id: str, mark: Mark | None = None) -> set[int]:
        """Return the rows that the branch must contain: those acknowledged on it, until `mark` or
        until now, and those that were copied from its parent."""
        with self._lock:
            count = len(self._rows[branch_id]) if mark is None else mark.get(branch_id, 0)
            return self._rows_of(branch_id, count, self._expected_of[branch_id][:1])

    def wrong(self, branch_id: str, rows: set[int]) -> tuple[list[int], list[int]]:
        """Return which rows the branch lacks, and which it has although they were acknowledged on
        another branch after the moment that it is a copy of. If it may be one of several copies,
        the best one counts."""
        with self._lock:
            found = []
            possible = [[copied] for copied in self._expected_of[branch_id]] or [[]]
            for copies in possible:
                must = self._rows_of(branch_id, len(self._rows[branch_id]), copies)
                later = {
                    number
                    for copied in copies
                    for number in self._rows[copied.parent_id]
                    if copied.next_number is not None and number >= copied.next_number
                }
                found.append((sorted(must - rows), sorted(later & rows)))
        return min(found, key=lambda wrong: len(wrong[0]) + len(wrong[1]))

    def _rows_of(self, branch_id: str, count: int, copies: Sequence[Copied]) -> set[int]:
        rows = set(self._rows[branch_id][:count])
        while copies:
            copied = copies[0]
            rows.update(self._rows[copied.parent_id][: copied.count])
            copies = self._expected_of[copied.parent_id]
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
