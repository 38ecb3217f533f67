"""Waiting for a condition with a deadline: no test sleeps for a fixed time."""

import os
import time
from collections.abc import Callable
from typing import Any


def wait_for(condition: Callable[[], Any], what: str, *, timeout: float = 30.0) -> None:
    """Wait until `condition` holds. Fails after `timeout` seconds, or later on a busy machine."""
    began = time.monotonic()
    pause = 0.01
    while not condition():
        waited = time.monotonic() - began
        assert waited < timeout * load(), f"not within {waited:.0f} s: {what}"
        time.sleep(pause)
        # Checking the condition uses processor time that its cause may need.
        pause = min(pause * 1.25, 0.05)


def load() -> float:
    """Return the number of runnable processes per core; at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
