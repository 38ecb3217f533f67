"""What all actors of a run share."""

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
    """How much goes on at once."""

    accounts: int = 3
    projects: int = 2  # of each account
    branches: int = 5  # of each project
    users: int = 2  # of each account
    writers: int = 6
    readers: int = 2
    # Seconds between two blows to the service: at least, at most.
    blows: tuple[float, float] = (0.5, 5.0)
    # How many blows come between two that hit the whole of it, about.
    blows_per_restart: int = 25


@dataclass(frozen=True)
class SeenOperation:
    """As an answer told of it that came at `at`, on the monotonic clock."""

    at: float
    status: str
    updated_at: str


@dataclass
class World:
    """The service under torture, and what the actors know of it."""

    seed: int
    size: Size
    service: Service
    journal: Journal
    ground: Ground
    ledger: Ledger = field(default_factory=Ledger)
    # The keys of the accounts.
    keys: list[str] = field(default_factory=list)
    # Living projects, to their account's key.
    projects: dict[str, str] = field(default_factory=dict)
    # What somebody has asked to delete, whether or not an answer came.
    doomed: set[str] = field(default_factory=set)
    # Every branch that an endpoint may have been on.
    places: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    # What one actor has seen of an operation, the next must not see undone.
    operations: dict[str, SeenOperation] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)
    # Held while the whole service is brought down and up again on purpose.
    restarting: threading.Lock = field(default_factory=threading.Lock)

    @property
    def state_dir(self) -> Path:
        return self.service.state_dir

    def chance(self, name: str) -> random.Random:
        """The choices of one actor: the same for the same seed."""
        return random.Random(f"{self.seed}/{name}")

    def known_projects(self) -> Mapping[str, str]:
        return dict(sorted(self.projects.items()))
