"""An actor, which repeats random actions in a thread of its own until the end of the run."""

import threading
import time
import traceback

from tests.torture.world import World


class Actor:
    """`act` performs one action. An exception in it is an error of this harness, and ends the
    run."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.chance = world.chance(name)
        # The action in progress, and when it began on the monotonic clock.
        self.doing: tuple[str, float] = ("begin", time.monotonic())
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def act(self) -> None:
        raise NotImplementedError

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout: float) -> bool:
        """Wait for the end of the thread. Returns whether it ended within `timeout` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def does(self, what: str) -> None:
        self.doing = (what, time.monotonic())

    def note(self, action: str, **fields: object) -> None:
        self.world.journal.note(self.name, action, **fields)

    def rest(self, shortest: float, longest: float) -> None:
        """Pause for a random number of seconds, or until the end of the run."""
        self.does("rest")
        self.world.over.wait(self.chance.uniform(shortest, longest))

    def _run(self) -> None:
        try:
            while not self.world.over.is_set():
                self.act()
        except BaseException:
            self.world.journal.broken("the harness itself goes on", traceback.format_exc())
            self.world.over.set()
