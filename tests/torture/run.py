"""A run from its beginning to its verdict."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.service import Service
from tests.torture.actor import Actor
from tests.torture.chaos import Chaos, bring_up
from tests.torture.clients import Reader, Writer
from tests.torture.complaints import complaints
from tests.torture.ground import Ground
from tests.torture.journal import LONGEST_LINE, Journal
from tests.torture.users import User
from tests.torture.verdict import Verdict
from tests.torture.watch import Watch
from tests.torture.world import Size, World

TELLS_EVERY = 10.0  # seconds
# Seconds in which every actor must stop: a connection may wait this long.
ENDS_WITHIN = 100.0


def torture(seed: int, seconds: float, size: Size, ground: Ground, *, directory: Path) -> Journal:
    """Strike a service of its own for so many seconds, and check the result.

    `directory` gets the journal and, if an invariant broke, what the logs contain about it.
    """
    journal = Journal(directory / "journal.jsonl")
    journal.note("run", "begin", seed=seed, seconds=seconds, size=str(size))
    environment = ground.clock.environment if ground.clock else {}
    service = Service(ground.state_dir, **environment)
    world = World(seed, size, service, journal, ground)
    try:
        world.keys = [world.service.stack.new_key() for _ in range(size.accounts)]
        _strike(world, seconds)
        _judge(world)
    finally:
        _bring_down(world)
    Verdict(world).down()
    for invariant, detail in complaints(ground.state_dir, journal):
        journal.broken(invariant, detail)
    _keep_evidence(world, directory)
    journal.close()
    return journal


def _strike(world: World, seconds: float) -> None:
    """Let all actors act for so many seconds, and stop them."""
    chaos = Chaos(world)
    actors: list[Actor] = [
        chaos,
        *(
            User(world, f"user {account}.{number}", key)
            for account, key in enumerate(world.keys)
            for number in range(world.size.users)
        ),
        *(Writer(world, f"writer {number}") for number in range(world.size.writers)),
        *(Reader(world, f"reader {number}") for number in range(world.size.readers)),
    ]
    watch = Watch(world, actors)
    began = time.monotonic()
    for actor in (*actors, watch):
        actor.start()
    while not world.over.wait(min(TELLS_EVERY, max(0.1, began + seconds - time.monotonic()))):
        tell(world, time.monotonic() - began)
        if time.monotonic() - began >= seconds:
            world.over.set()
    _end([*actors, watch], chaos)
    if world.service.stack.process.poll() is not None:
        bring_up(world)


def _end(actors: Sequence[Actor], chaos: Chaos) -> None:
    """Wait for the end of all actors, and continue what was stopped."""
    deadline = time.monotonic() + ENDS_WITHIN
    chaos.join(ENDS_WITHIN)
    chaos.resume_all()
    for actor in actors:
        if not actor.join(max(0.1, deadline - time.monotonic())):
            what = f"{actor.name}: {actor.doing[0]}, after the end"
            actor.world.journal.broken("nobody is left hanging", what)


def _bring_down(world: World) -> None:
    try:
        world.service.down()
    except subprocess.TimeoutExpired as error:
        world.journal.broken("`up` stops when told to", str(error))
        world.service.stack.process.kill()


def _judge(world: World) -> None:
    verdict = Verdict(world)
    for judge in (verdict.settled, verdict.complete, verdict.cleared):
        judge()
        world.journal.note("run", judge.__name__)


def tell(world: World, seconds: float) -> None:
    """Print one line about the run so far."""
    journal = world.journal
    print(
        f"{seconds:5.0f} s  {journal.total('requests')} requests, {journal.total('rows')} rows, "
        f"{journal.total('reads')} reads, {journal.total('client errors')} client errors, "
        f"{journal.total('blows')} blows, {len(journal.breaks)} broken",
        flush=True,
    )


def summary(journal: Journal) -> str:
    kinds = (
        "requests",
        "rows",
        "reads",
        "moments",
        "branches read",
        "client errors",
        "blows",
        "looks",
    )
    lines = [f"{kind}: {journal.counts(kind)}" for kind in kinds]
    lines += [f"broken: {str(one)[:LONGEST_LINE]}" for one in journal.breaks] or [
        "no invariant broke"
    ]
    return "\n".join(lines)


def _keep_evidence(world: World, directory: Path) -> None:
    """Save the service's logs, and their lines about each break."""
    if not world.journal.breaks:
        return
    logs = world.state_dir / "log"
    for path in (*logs.glob("*"), world.state_dir / "up.log"):
        (directory / path.name).write_bytes(path.read_bytes())
    with (directory / "evidence.txt").open("w") as file:
        for broken in world.journal.breaks:
            lines = world.journal.evidence(broken, logs)
            file.write("\n".join([f"== {broken}", *lines, "", ""]))
