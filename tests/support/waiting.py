"""Waiting for a condition with a deadline: no test sleeps for a fixed time."""

import os
import time
from collections.abc import Callable
from typing import Any


def wait_for(condition: Callable[[], Any], what: str, *, timeout: float = 30.0) -> None:
    """Wait until `condition` holds; fails after `timeout` seconds, and more on a busy machine."""
    began = time.monotonic()
    pause = 0.01
    while not condition():
        waited = time.monotonic() - began
        assert waited < timeout * load(), f"not within {waited:.0f} s: {what}"
        time.sleep(pause)
        # To ask takes time as well, which what is waited for may need.
        pause = min(pause * 1.25, 0.05)


def load() -> float:
    """How many processes there are for each core that want to run; 1 or more."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
