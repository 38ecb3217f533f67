"""Waiting for a condition with a deadline: no test sleeps for a fixed time."""

import time
from collections.abc import Callable
from typing import Any


def wait_for(condition: Callable[[], Any], what: str, *, timeout: float = 30.0) -> None:
    """Wait until `condition` holds; fails after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    pause = 0.01
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout:.0f} s: {what}"
        time.sleep(pause)
        # To ask takes time as well, which what is waited for may need.
        pause = min(pause * 1.25, 0.05)
