"""How long a failed delivery waits for its next attempt."""

import random
from datetime import timedelta

# The pause after the first failed attempt, after the second and so on. The last one repeats. A day
# has about 15 attempts.
PAUSES = [
    timedelta(seconds=5),
    timedelta(seconds=10),
    timedelta(seconds=20),
    timedelta(seconds=40),
    timedelta(minutes=2),
    timedelta(minutes=10),
    timedelta(minutes=30),
    timedelta(hours=1),
    timedelta(hours=2),
    timedelta(hours=4),
]
# Pauses vary at random by this share, so that receivers that failed at the same time are not all
# called again at the same time.
SPREAD = 0.2
# How long a failed delivery delays the deliveries behind it at most. So this is the interval at
# which a receiver that is down is called, and the time for which one delivery that the receiver
# always refuses delays others.
LONGEST_HOLD = timedelta(minutes=1)


def pause_after(failures: int) -> timedelta:
    """The pause after this number of failed attempts, which is at least 1."""
    pause = PAUSES[min(failures, len(PAUSES)) - 1]
    return pause * random.uniform(1 - SPREAD, 1 + SPREAD)  # noqa: S311 # keeps no secret
