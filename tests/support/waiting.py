"""Waiting for a condition with a deadline: no test sleeps for a fixed time."""

import functools
import os
import time
from collections.abc import Callable
from typing import Any

# A loop of so many turns takes FAST seconds of a fast processor.
WORK, FAST = 200_000, 0.01


def wait_for(condition: Callable[[], Any], what: str, *, timeout: float = 30.0) -> None:
    """Wait until `condition` holds. Fails after `timeout` seconds, or later on a busy or slow
    machine."""
    began = time.monotonic()
    pause = 0.01
    while not condition():
        waited = time.monotonic() - began
        assert waited < timeout * load(), f"not within {waited:.0f} s: {what}"
        time.sleep(pause)
        # Checking the condition uses processor time that its cause may need.
        pause = min(pause * 1.25, 0.05)


def load() -> float:
    """Return how many times longer things may take than on an idle machine with a fast processor;
    at least 1."""
    return slowness() * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@functools.cache
def slowness() -> float:
    """Measure how many times slower a processor is than a fast one; at least 1. Those of a virtual
    machine become slower while its host is busy."""
    return _measured(time.process_time, turns=1)


def busyness() -> float:
    """Measure how many times longer a process that computes takes at present than it would on an
    idle machine with a fast processor; at least 1."""
    return _measured(time.monotonic, turns=100)


def _measured(clock: Callable[[], float], *, turns: int) -> float:
    began, total = clock(), 0
    for number in range(WORK * turns):
        total += number * number
    return max(1.0, (clock() - began) / FAST / turns)
