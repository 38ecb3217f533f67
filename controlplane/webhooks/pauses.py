"""How long a delivery that failed waits for its next attempt."""

import random
from datetime import timedelta

# After the first failed attempt, the second and so on; after the last, the last again. In a day
# that makes about a dozen attempts.
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
# So that receivers that failed together are not called together again.
SPREAD = 0.2
# What waits behind a delivery that failed waits no longer than this. While a receiver is down that
# is how often it is asked; and one delivery that it always refuses holds up others for so long.
LONGEST_HOLD = timedelta(minutes=1)


def pause_after(failures: int) -> timedelta:
    """The pause after so many failed attempts, at least one."""
    pause = PAUSES[min(failures, len(PAUSES)) - 1]
    return pause * random.uniform(1 - SPREAD, 1 + SPREAD)  # noqa: S311 # keeps no secret
