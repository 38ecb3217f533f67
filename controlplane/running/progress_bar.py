"""What `up` prints while it starts: a line for each step and, on a terminal, a bar for the one step
whose length is known."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

_WIDTH = 30
_DRAW_INTERVAL = 0.1  # seconds


@contextmanager
def bar(directory: Path, expected: int, *, out: TextIO | None = None) -> Iterator[None]:
    """Show on a terminal how much of `expected` bytes have been written below `directory`, while
    the block runs."""
    out = out or sys.stdout
    if not out.isatty():
        yield
        return
    over = threading.Event()
    drawing = threading.Thread(target=_draw, args=(out, directory, expected, over.wait))
    drawing.start()
    try:
        yield
    finally:
        over.set()
        drawing.join()
        with suppress(OSError):
            out.write("\r" + " " * (_WIDTH + 10) + "\r")
            out.flush()


def _draw(out: TextIO, directory: Path, expected: int, is_over: Callable[[float], bool]) -> None:
    began = time.monotonic()
    while not is_over(_DRAW_INTERVAL):
        part = min(1.0, _size(directory) / expected)
        full = round(part * _WIDTH)
        seconds = time.monotonic() - began
        with suppress(OSError):
            out.write(f"\r  [{'#' * full}{'.' * (_WIDTH - full)}] {seconds:.0f} s")
            out.flush()


def _size(directory: Path) -> int:
    total = 0
    with suppress(OSError):
        for path in directory.rglob("*"):
            with suppress(OSError):
                total += path.lstat().st_size
    return total
