"""A client's own ledger: what it has read of its branches at each moment is what branches of these
moments have, from a branch's first second on, across suspends, kills, restores and resets."""

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from tests.support.filesystems import mounted
from tests.support.place import Place
from tests.support.recorded import Held, Written, named, rows_in
from tests.support.service import Service
from tests.support.stack import Stack

DISK = 6 << 30
AT_ONCE = 2


class Ledger(Written):
    """A branch with a client that writes to it from its first second on."""

    def __init__(self, project: Place, made: Any, *, seed: int) -> None:
        branch, (endpoint,) = made["branch"], made["endpoints"]
        super().__init__(project, branch["id"], endpoint["id"], seed=seed)
        # From which entry on the entries are the present data's own, and how many of the earlier
        # ones it descends from.
        self.own_since = 0
        self.inherited: list[Held] = []

    def descended(self) -> list[Held]:
        """The entries that the present data descends from."""
        return [*self.inherited, *self.recorder.held[self.own_since :]]

    def child(self, *, seed: int) -> "Ledger":
        return Ledger(
            self.project,
            self.project.new_branch(endpoint=True, parent_id=self.branch_id),
            seed=seed,
        )

    def restore(self, held: Held, *, chance: random.Random) -> None:
        """Restore the branch to the entry, and go on."""
        at, descended = held.moment(chance), self.descended()
        self.restore_to(at)
        # Positions of the entry itself lie behind the one that was restored.
        self.inherited = descended[: descended.index(held)] if held in descended else []

    def reset(self, parent: "Ledger") -> None:
        self.replace_data(source_branch_id=parent.branch_id)
        self.inherited = []

    def replace_data(self, **body: str) -> None:
        super().replace_data(**body)
        # The entry under way may have begun before the data was replaced.
        self.own_since = len(self.recorder.held) + 1
        self.commits(3)


@dataclass(frozen=True)
class Entry:
    """What a branch must have at a moment."""

    of: Ledger
    moment: datetime | int
    rows: frozenset[int]


def entries(ledger: Ledger, count: int, *, chance: random.Random) -> list[Entry]:
    """Moments spread over the whole ledger: times, and every second one a position, if it names the
    present data's line or is the only one of its kind."""
    held, chains, present = ledger.recorder.held, ledger.chains(), ledger.descended()
    found = []
    for number in range(count):
        begin, end = (len(held) * (number + part) // count for part in (0, 1))
        one = held[chance.randrange(begin, max(end, begin + 1))]
        position = one.position(chance)
        is_unique = sum(chain.has_position(position) for chain in chains) == 1
        by_time = number % 2 == 0 or not (one in present or is_unique)
        found.append(Entry(ledger, one.moment(chance) if by_time else position, one.rows))
    return found


def check(found: Sequence[Entry]) -> None:
    """Make a branch of each moment, and compare."""
    seconds, refused, wrong = [], [], []

    def look(one: Entry) -> None:
        project, client = one.of.project, one.of.project.client.another()
        body = {
            "branch": {"parent_id": one.of.branch_id, **named(one.moment)},
            "endpoints": [{"type": "read_write"}],
        }
        began = time.monotonic()
        answer = client.call("POST", f"{project.path}/branches", json=body)
        if not answer.ok:
            refused.append((one.moment, answer.text))
            return
        made = answer.json()
        ended = client.finish(made, timeout=180)
        if failed := [each for each in ended if each["status"] != "finished"]:
            refused.append((one.moment, failed[0]["error"]))
        else:
            with project.connect(
                tls=False, options=f"endpoint={made['endpoints'][0]['id']}"
            ) as connection:
                rows = rows_in(connection)
            seconds.append(time.monotonic() - began)
            if rows != one.rows:
                wrong.append((one.moment, sorted(rows ^ one.rows)))
        client.finish(client.delete(project.branch_path(made["branch"]["id"])), timeout=180)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(look, found))
    exact = len(found) - len(refused) - len(wrong)
    print(f"{exact} exact, {len(refused)} refused, {len(wrong)} wrong", flush=True)
    if seconds:
        print(f"to the first row: {statistics.median(seconds):.2f} s, at worst {max(seconds):.2f}")
    assert (refused, wrong) == ([], [])


def test_the_moments_of_restored_and_reset_branches(stack: Stack) -> None:
    chance = random.Random(1)
    client = stack.client()
    project = Place.create(stack, client)
    main = Ledger(project, project.created, seed=1)
    with ExitStack() as writing:
        writing.enter_context(main.recorder.in_background())
        main.commits(6)
        main.restore(main.recorder.held[3], chance=chance)
        child = main.child(seed=2)
        writing.enter_context(child.recorder.in_background())
        child.commits(3)
        child.reset(main)
        project.suspend(child.endpoint_id)
        child.commits(3)
    check([*entries(main, 4, chance=chance), *entries(child, 4, chance=chance)])
    assert [one.gaps() for one in (main, child)] == [[], []]
    client.delete(project.path)


@pytest.fixture
def service() -> Iterator[Service]:
    with mounted("xfs", size=DISK) as place:
        made = Service(place, PERCH_DISK_RESERVE="100M")
        try:
            yield made
        finally:
            made.down()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1])
def test_a_hundred_moments_of_a_ledger(service: Service, seed: int) -> None:
    chance = random.Random(seed)
    project = Place.create(service.stack, service.client)
    main = Ledger(project, project.created, seed=seed)
    with ExitStack() as writing:

        def begin(ledger: Ledger) -> Ledger:
            writing.enter_context(ledger.recorder.in_background())
            ledger.commits(8)
            return ledger

        begin(main)
        child = begin(main.child(seed=seed + 1))
        project.suspend(main.endpoint_id)
        main.commits(8)
        main.kill_compute()
        main.commits(8)
        main.restore(main.recorder.held[10], chance=chance)
        main.commits(8)
        child.reset(main)
        child.commits(40)
        project.suspend(child.endpoint_id)
        child.commits(20)
        service.kill("worker")
        grandchild = begin(child.child(seed=seed + 2))
        child.kill_compute()
        main.kill_compute()
        main.commits(8)
        # Back to before the first restore, and then to between both.
        main.restore(main.recorder.held[20], chance=chance)
        main.commits(8)
        path = project.endpoint_path(main.endpoint_id, "/restart")
        project.done(project.client.another().post(path))
        main.commits(8)
        service.kill("worker")
        child.restore(child.recorder.held[-10], chance=chance)
        grandchild.reset(child)
        grandchild.commits(8)
        project.suspend(grandchild.endpoint_id)
        grandchild.commits(8)
    found = [
        *entries(main, 40, chance=chance),
        *entries(child, 35, chance=chance),
        *entries(grandchild, 25, chance=chance),
    ]
    assert len(found) == 100
    check(found)
    assert [one.gaps() for one in (main, child, grandchild)] == [[], [], []]
    # At the end, each branch still has what its client wrote last.
    for one in (main, child, grandchild):
        with one.connect() as connection:
            assert rows_in(connection) == one.recorder.held[-1].rows
