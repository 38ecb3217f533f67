"""The disk and the clock of the service under torture, if this host allows strikes at them."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.filesystems import mounted, run
from tests.support.stack import new_state_dir

# Their names in the journal.
DISK, CLOCK = "the disk", "the clock"
# In bytes. It uses as much of the host's disk as is written to it.
DISK_SIZE = 12 << 30


class Clock:
    """The wall clock of the service's own processes. Their monotonic clock, the computes and the
    metadata database use the host's clocks."""

    def __init__(self, directory: Path) -> None:
        """Raises FileNotFoundError if the host has no C compiler."""
        library, self._file = directory / "clock.so", directory / "clock-shift"
        source = Path(__file__).with_name("clock.c")
        run("cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source))
        self._file.write_bytes(bytes(8))
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(library),
            "CLOCK_SHIFT": str(self._file),
        }

    def shift(self, seconds: int) -> None:
        """Make it show so many seconds more than the host's clock, from now on."""
        with self._file.open("r+b") as file:
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))


@dataclass(frozen=True)
class Ground:
    state_dir: Path
    # Whether the state directory has a filesystem of its own, which may be filled.
    has_disk: bool = False
    clock: Clock | None = None


@contextmanager
def ground(directory: Path) -> Iterator[Ground]:
    """Prepare what this host allows, and print what it does not. `directory` is for the clock."""
    with ExitStack() as stack:
        try:
            state_dir, has_disk = stack.enter_context(mounted("xfs", size=DISK_SIZE)), True
        except pytest.skip.Exception as reason:
            print(f"the disk is not filled: {reason}")
            state_dir, has_disk = stack.enter_context(new_state_dir()), False
        try:
            clock = Clock(directory)
        except FileNotFoundError:
            print("the clock is not shifted: there is no C compiler")
            clock = None
        yield Ground(state_dir, has_disk, clock)
