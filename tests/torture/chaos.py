"""Strikes the service: kills, stops, deleted sockets, a full disk, a wrong clock, and at times a
restart of the whole service."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import psutil

from tests.support.filesystems import filled
from tests.torture import processes
from tests.torture.actor import Actor
from tests.torture.ground import CLOCK, DISK, Clock
from tests.torture.world import World

TRIES_TO_COME_UP = 3


class Chaos(Actor):
    """Strikes again and again. A timer continues after some seconds what a strike has stopped."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "chaos")
        self.stopped: list[psutil.Process] = []

    def act(self) -> None:
        self.rest(*self.world.size.blows)
        if not self.world.journal.total("rows"):
            return  # there is nothing to lose yet
        if self.world.over.is_set():
            return
        blows, weights = zip(*self._blows(), strict=True)
        blow = self.chance.choices(blows, weights)[0]
        with suppress(psutil.NoSuchProcess):
            blow()

    def _blows(self) -> Sequence[tuple[Callable[[], None], float]]:
        at_parts = [
            (self.part(name, how), weight)
            for name, weight in (
                *(("worker", 6), ("proxy", 5), ("api", 4), ("metadata", 3)),
                *(("supervisor", 1), ("console", 1)),
            )
            for how in (self.kill, self.stop)
        ]
        at_computes = [
            (lambda find=find, how=how: self.one(find, how), weight)
            for find, weight in (
                (self.find_postmaster, 6),
                (self.find_backend, 5),
                (self.find_pooler, 3),
            )
            for how in (self.kill, self.stop)
        ]
        small = [*at_parts, *at_computes, (self.delete_socket, 3)]
        if self.world.ground.has_disk:
            small.append((self.fill_disk, 2))
        if clock := self.world.ground.clock:
            small.append((lambda: self.shift_clock(clock), 3))
        share = sum(weight for _, weight in small) / self.world.size.blows_per_restart
        whole = (self.stop_up, self.kill_up, self.kill_everything)
        return [*small, *((blow, share / len(whole)) for blow in whole)]

    # strikes at one process

    def part(self, name: str, how: Callable[[str, psutil.Process], None]) -> Callable[[], None]:
        """Return a strike at one of the processes of a part of the service."""

        def blow() -> None:
            if found := processes.parts(self.world.state_dir)[name]:
                how(name, self.chance.choice(found))

        return blow

    def one(
        self,
        find: Callable[[], tuple[str, psutil.Process] | None],
        how: Callable[[str, psutil.Process], None],
    ) -> None:
        if found := find():
            how(*found)

    def kill(self, what: str, process: psutil.Process) -> None:
        self.strike("kill", what, pid=process.pid)
        process.kill()

    def stop(self, what: str, process: psutil.Process) -> None:
        """Stop the process for some seconds. The metadata database is stopped with its backends,
        because nothing notices a stop of its postmaster alone."""
        seconds = self.chance.choice([0.3, 1.0, 3.0, 8.0])
        self.strike("stop", what, pid=process.pid, seconds=seconds)
        doomed = [process]
        if what == "metadata":
            doomed += process.children()
        for one in doomed:
            with suppress(psutil.NoSuchProcess):
                one.suspend()
                self.stopped.append(one)
        threading.Timer(seconds, self.resume, [doomed]).start()

    def resume(self, stopped: Sequence[psutil.Process]) -> None:
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def resume_all(self) -> None:
        self.resume(self.stopped)

    # possible targets

    def find_postmaster(self) -> tuple[str, psutil.Process] | None:
        found = sorted(processes.postmasters(self.world.state_dir).items())
        if not found:
            return None
        branch_id, some = self.chance.choice(found)
        return f"compute of {branch_id}", some[0]

    def find_backend(self) -> tuple[str, psutil.Process] | None:
        """Return a backend of a client or of Postgres itself: a checkpointer is killed like any
        other."""
        found = self.find_postmaster()
        children = found[1].children() if found else []
        if not found or not children:
            return None
        return f"backend, {found[0]}", self.chance.choice(children)

    def find_pooler(self) -> tuple[str, psutil.Process] | None:
        found = processes.poolers(self.world.state_dir)
        return ("pooler", self.chance.choice(found)) if found else None

    def delete_socket(self) -> None:
        """Delete the socket of a running compute or of its pooler."""
        sockets = sorted(self.world.state_dir.glob("sockets/ep-*/.s.PGSQL.*[0-9]"))
        if sockets:
            path = self.chance.choice(sockets)
            self.strike("delete", f"a socket of port {path.suffix[1:]}", path=str(path))
            path.unlink(missing_ok=True)

    # strikes at the disk and the clock

    def fill_disk(self) -> None:
        seconds, leaving = self.chance.choice([1, 3, 8]), self.chance.choice([0, 1 << 20, 64 << 20])
        self.strike("fill", DISK, seconds=seconds, leaving=leaving)
        with filled(self.world.state_dir, leaving=leaving):
            self.world.over.wait(seconds)

    def shift_clock(self, clock: Clock) -> None:
        """Shift the clock for a while, during which other strikes continue."""
        shift = self.chance.choice([-3600, -15, 15, 3600])
        seconds = self.chance.choice([3, 15, 40])
        self.strike("shift", CLOCK, shift=shift, seconds=seconds)
        clock.shift(shift)
        threading.Timer(seconds, clock.shift, [0]).start()

    # strikes at the whole service

    def stop_up(self) -> None:
        self.restart("stop", self.world.service.down)

    def kill_up(self) -> None:
        def kill() -> None:
            self.world.service.stack.process.kill()
            self.world.service.stack.process.wait(10)

        self.restart("kill up", kill)

    def kill_everything(self) -> None:
        self.restart("kill everything", self.world.service.kill_everything)

    def restart(self, how: str, bring_down: Callable[[], None]) -> None:
        self.strike("restart", how)
        with self.world.restarting:
            try:
                bring_down()
            except Exception as error:
                self.world.journal.broken("`up` stops when told to", f"{how}: {error!r}")
                self.world.service.stack.process.kill()
            bring_up(self.world)

    def strike(self, how: str, what: str, **fields: Any) -> None:
        self.does(f"{how} {what}")
        kind = "compute" if "compute of" in what else what
        self.world.journal.count("blows", f"{how} {'backend' if 'backend' in what else kind}")
        self.note(how, what=what, **fields)


def bring_up(world: World) -> None:
    """Start `up` again, and keep the output of the previous one. Ends the run if it does not
    start."""
    said = world.state_dir / "up.log"
    for _ in range(TRIES_TO_COME_UP):
        world.journal.note("up", "said", text=said.read_text(errors="replace")[-4000:])
        try:
            world.service.up()
        except AssertionError as error:
            world.journal.broken("`up` comes up", str(error)[-2000:])
        else:
            world.journal.note("up", "is up", api=world.service.stack.api_url)
            return
    world.over.set()
