"""The state that all actors of a run share."""

import random
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.service import Service
from tests.torture.ground import Ground
from tests.torture.journal import Journal
from tests.torture.ledger import Ledger


@dataclass(frozen=True)
class Size:
    """How many accounts, projects and actors a run has, and how often it strikes the service."""

    accounts: int = 3
    projects: int = 2  # of each account
    branches: int = 5  # of each project
    users: int = 2  # of each account
    writers: int = 6
    readers: int = 2
    # The shortest and the longest time between two blows to the service, in seconds.
    blows: tuple[float, float] = (0.5, 5.0)
    # About how many blows to single processes come between two restarts of the whole service.
    blows_per_restart: int = 25


@dataclass(frozen=True)
class SeenOperation:
    """An operation as a response contained it. `at` is when the response came, on the monotonic
    clock."""

    at: float
    status: str
    updated_at: str


@dataclass
class World:
    """The service under torture, and what the actors know about it."""

    seed: int
    size: Size
    service: Service
    journal: Journal
    ground: Ground
    ledger: Ledger = field(default_factory=Ledger)
    # The keys of the accounts.
    keys: list[str] = field(default_factory=list)
    # The projects that exist, each with its account's key.
    projects: dict[str, str] = field(default_factory=dict)
    # The ids of what a user has requested to delete, whether or not a response came.
    deletion_requested: set[str] = field(default_factory=set)
    # For each endpoint, every branch that it may have been on.
    possible_branches: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    # The newest state of each operation that an actor has seen. No actor may see an older state
    # later.
    operations: dict[str, SeenOperation] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)
    # Held while the whole service is stopped and started again on purpose.
    restarting: threading.Lock = field(default_factory=threading.Lock)

    @property
    def state_dir(self) -> Path:
        return self.service.state_dir

    def chance(self, name: str) -> random.Random:
        """Return the random generator of one actor. It is the same for the same seed."""
        return random.Random(f"{self.seed}/{name}")

    def known_projects(self) -> Mapping[str, str]:
        return dict(sorted(self.projects.items()))
