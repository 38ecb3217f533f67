"""Random past moments of branches equal what was recorded when they were written: across restores,
suspends, a full disk, and kills of computes and of the worker."""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from controlplane.compute.host.cloning import shares_blocks
from tests.controlplane.cancel_retry import SOON, cancel, ended
from tests.support.filesystems import filled, mounted
from tests.support.past import history, notes, with_history
from tests.support.place import Place
from tests.support.project import Project
from tests.support.recorded import Chain, Held, Written, named, rows_in
from tests.support.recovered import rows_at
from tests.support.service import Service
from tests.support.waiting import wait_for

MIB = 1 << 20
RESERVE = 200 * MIB
MOMENTS = 100
# So many of them are recovered through the API, the rest by the functions that the worker calls.
THROUGH_API = 40
AT_ONCE = 4


@dataclass(frozen=True)
class Sample:
    """A moment of a branch, and the rows that the branch must have then."""

    written: Written
    moment: datetime | int
    rows: frozenset[int]


def samples(written: Written, count: int, *, chance: random.Random) -> list[Sample]:
    """Random moments that are in the branch's history: half of them times, half positions. They are
    spread over all that was recorded, so that every blow has moments before and after it."""
    chains = written.chains()
    # What was recorded last may last until now.
    in_history = [one for one in written.recorder.held if chain_of(one, chains)]
    assert len(in_history) >= count
    found = []
    for number in range(count):
        begin, end = (len(in_history) * (number + part) // count for part in (0, 1))
        held = in_history[chance.randrange(begin, end)]
        position = held.position(chance)
        # A restored branch has positions twice, and its last chain grows: the latest is meant.
        is_unique = sum(one.has_position(position) for one in chains) == 1
        by_time = number % 2 == 0 or not is_unique
        found.append(Sample(written, held.moment(chance) if by_time else position, held.rows))
    return found


def chain_of(held: Held, chains: Sequence[Chain]) -> Chain | None:
    for chain in chains:
        last = chain.last_at if chain.ended_at else datetime.max.replace(tzinfo=UTC)
        if chain.first_at <= held.since and held.until <= last:
            return chain
    return None


def check_through_api(found: Sequence[Sample]) -> None:
    """Recover the moments as branches with endpoints, and delete these again."""

    def check(one: Sample) -> None:
        project, client = one.written.project, one.written.project.client.another()
        body = {
            "branch": {"parent_id": one.written.branch_id, **named(one.moment)},
            "endpoints": [{"type": "read_write"}],
        }
        made = client.post(f"{project.path}/branches", body)
        for operation in client.finish(made, timeout=120):
            assert operation["status"] == "finished", (one, operation)
        with project.compute(made["endpoints"][0]["id"]) as connection:
            assert rows_in(connection) == one.rows, one
        client.finish(client.delete(project.branch_path(made["branch"]["id"])), timeout=120)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        for _ in threads.map(check, found):
            pass


def check_refused(written: Written, *, chance: random.Random) -> int:
    """Check that what is not in the history is refused before anything is made. Returns how many
    moments were asked for."""
    chains = written.chains()
    first, last = chains[0], chains[-1]
    outside: list[datetime | int] = [
        first.first_at - timedelta(microseconds=1),
        first.first_at - timedelta(days=chance.randint(1, 1000)),
        first.first_lsn - 1,
        datetime.now(UTC) + timedelta(seconds=chance.randint(60, 6000)),
        last.last_lsn + (3 << 30),
    ]
    for before, after in pairwise(chains):
        gap = after.first_at - before.last_at
        # The history of replaced data goes on without a gap.
        if gap:
            outside += [before.last_at + gap * chance.uniform(0.01, 0.99) for _ in range(8)]
        if before.last_lsn < after.first_lsn - 1:
            position = chance.randrange(before.last_lsn + 1, after.first_lsn)
            # After a restore a later chain may have the position, or an earlier one that the
            # present data does not descend from: see `moments.find_lsn`.
            if not any(one.has_position(position) for one in chains):
                outside.append(position)
    branches = len(written.project.client.get(f"{written.project.path}/branches")["branches"])
    for moment in outside:
        response = written.post(moment)
        assert response.status_code == 422, (moment, response.text)
    listed = written.project.client.get(f"{written.project.path}/branches")["branches"]
    assert len(listed) == branches
    return len(outside)


def begun(project: Place, branch_id: str, endpoint_id: str, *, seed: int) -> Written:
    """The branch, once it has a history."""
    written = Written(project, branch_id, endpoint_id, seed=seed)
    wait_for(written.chains, "the first base copy", timeout=60)
    return written


@pytest.fixture
def service() -> Iterator[Service]:
    """A service on a disk of its own, which reserves RESERVE bytes."""
    with mounted("ext4", size=4096 * MIB) as place:
        made = Service(place, PERCH_DISK_RESERVE="200M")
        try:
            yield made
        finally:
            made.down()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1])
def test_a_hundred_random_moments_equal_what_was_recorded(
    service: Service, settings: Any, seed: int
) -> None:
    chance = random.Random(seed)
    project = Place.create(service.stack, service.client)
    main = begun(project, project.branch_id, project.endpoint_id, seed=seed)
    with main.recorder.in_background():
        main.commits(10)
        made = project.new_branch(endpoint=True)
        ids = made["branch"]["id"], made["endpoints"][0]["id"]
        child = begun(project, *ids, seed=seed + 1)
        with child.recorder.in_background():
            strike(service, main, child, chance)
    for written in (main, child):
        print(len(written.recorder.held), "states,", len(written.chains()), "chains")
    found = [*samples(main, 70, chance=chance), *samples(child, 30, chance=chance)]
    assert len(found) == MOMENTS
    chance.shuffle(found)
    assert check_refused(main, chance=chance) + check_refused(child, chance=chance) > 20
    check_through_api(found[:THROUGH_API])
    for written in (main, child):
        project.suspend(written.endpoint_id)
    service.down()
    settings.STATE_DIR = service.state_dir
    settings.SOCKET_DIR = service.state_dir / "sockets"
    settings.DISK_RESERVE = RESERVE
    for one in found[THROUGH_API:]:
        assert rows_at(one.written.branch_id, one.moment, dbname="neondb") == one.rows, one


def strike(service: Service, main: Written, child: Written, chance: random.Random) -> None:
    """Do to the branches, while they are written to, what their history must survive."""
    project = main.project

    def restore_main() -> None:
        times = [one.moment for one in samples(main, 8, chance=chance)]
        main.restore_to(chance.choice([at for at in times if isinstance(at, datetime)]))

    def kill_both() -> None:
        service.kill("worker")
        main.kill_compute()

    main.commits(20)
    with filled(service.state_dir, leaving=RESERVE - 30 * MIB):
        wait_for(lambda: all(one.gaps() for one in (main, child)), "the gaps", timeout=60)
    # Not by the gaps: what was before them may have been removed, to make room.
    wait_for(
        lambda: all(any(chain.ended_at is None for chain in one.chains()) for one in (main, child)),
        "new bases",
        timeout=60,
    )
    blows: list[Callable[[], object]] = [
        lambda: project.suspend(main.endpoint_id),
        lambda: main.kill_compute(),
        lambda: service.kill("worker"),
        restore_main,
        lambda: child.kill_compute(),
        kill_both,
        lambda: project.suspend(child.endpoint_id),
        restore_main,
    ]
    for blow in blows:
        main.commits(15)
        blow()
    main.commits(15)
    child.commits(10)


HEAVY = 2 << 30  # bytes

# For each part of the work, whether it is under way in the staging directory.
UNDER_WAY: dict[str, Callable[[Path], bool]] = {
    "copying_base": lambda staging: (staging / "data" / "base" / "1" / "1000000").exists(),
    "adding_log": lambda staging: any((staging / "data" / "pg_wal").glob("0*")),
    "replay": lambda staging: (staging / "data" / "postmaster.pid").exists(),
}


@pytest.fixture
def child(fresh_project: Project) -> Any:
    """A branch with a base copy of its own, a lot of log after it, and the last commit's time."""
    project = with_history(fresh_project)
    project.sql("CREATE TABLE notes AS SELECT 'first' AS text")
    made = project.new_branch(endpoint=True)
    child_id, endpoint_id = made["branch"]["id"], made["endpoints"][0]["id"]
    wait_for(lambda: history(project, child_id).get("earliest"), "the first base copy")
    project.sql(
        "CREATE TABLE wide AS SELECT repeat('x', 1000) FROM generate_series(1, 250000)",
        endpoint_id=endpoint_id,
    )
    ((at,),) = project.sql("SELECT clock_timestamp()", endpoint_id=endpoint_id)
    project.sql("DELETE FROM notes", endpoint_id=endpoint_id)
    return child_id, at.isoformat()


@pytest.mark.thorough
@pytest.mark.parametrize("part", UNDER_WAY)
def test_a_cancelled_creation_leaves_nothing_and_can_be_done_again(
    fresh_project: Project, child: Any, part: str
) -> None:
    project, (child_id, at) = fresh_project, child
    branches = project.stack.state_dir / "branches"
    if shares_blocks(branches):
        pytest.skip("copies share their blocks here, and take no time")
    (base,) = (branches / child_id / "history").glob("*/bases/*/data")
    if part == "copying_base":
        heavy = base / "base" / "1" / "1000000"
        heavy.touch()
        os.truncate(heavy, HEAVY)
    before = history(project, child_id)["bases"]
    made = project.client.post(
        project.path + "/branches", {"branch": {"parent_id": child_id, "parent_timestamp": at}}
    )
    (create,), branch_id = made["operations"], made["branch"]["id"]
    staging = branches / f".{branch_id}"
    wait_for(lambda: UNDER_WAY[part](staging), part)
    assert [one["status"] for one in cancel(project, create)] == ["cancelling"]
    assert ended(project, create, timeout=SOON)["status"] == "cancelled"
    assert not staging.exists()
    assert not (branches / branch_id).exists()
    assert not list(project.stack.state_dir.glob(f"sockets/*{branch_id}*"))
    assert project.branch(branch_id)["current_state"] == "init"
    found = history(project, child_id)
    assert (found["bases"], found["gaps"]) == (before, [])
    (base / "base" / "1" / "1000000").unlink(missing_ok=True)
    # An endpoint's start makes the branch, and so does a new request.
    assert notes(project, branch_id) == ["first"]
    again = project.new_branch(parent_id=child_id, parent_timestamp=at)["branch"]
    assert notes(project, again["id"]) == ["first"]
