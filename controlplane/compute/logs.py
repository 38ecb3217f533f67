"""Keeps the computes' logs from growing without end."""

import os
from pathlib import Path

from django.conf import settings

LONGEST = 10 << 20  # bytes


def trim_logs() -> None:
    """Cut every compute's log that has grown over `LONGEST`, keeping its newest half.

    Postgres appends, so it goes on writing at the new end; a line that it writes at that
    very moment may be lost.
    """
    for path in (Path(settings.STATE_DIR) / "branches").glob("*/postgres.log"):
        with path.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            if size > LONGEST:
                file.seek(size - LONGEST // 2)
                newest = file.read()
                file.seek(0)
                file.write(newest)
                file.truncate()
