"""Whether a copy will fit, asked before it is begun."""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from controlplane.compute.tree import FICLONE

# Bytes for the rows and the lists, and for what is written while the copy is made.
BESIDE = 256 << 20


class NoRoom(Exception):
    """The copy does not fit; the message says how much is needed and left."""


def require_room(trees: Iterable[Path], *, at: Path) -> None:
    """See that copies of the trees fit into the directory `at`, ours alone. Raises NoRoom."""
    trees = list(trees)
    needed = BESIDE
    if not trees or not _shares_blocks(trees[0], at):
        needed += sum(map(_size_of, trees))
    free = shutil.disk_usage(at).free
    if free < needed:
        raise NoRoom(f"{at.parent} has {free / 1e9:.1f} GB left, and {needed / 1e9:.1f} are needed")


def _size_of(tree: Path) -> int:
    """Bytes on the disk. What belongs to strangers is counted, never opened by name."""
    total = 0
    for _, _, names, descriptor in os.fwalk(tree, onerror=None):
        for name in names:
            try:
                total += os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def _shares_blocks(tree: Path, at: Path) -> bool:
    """Whether a copy would take no room of its own: tried, as only the filesystem knows."""
    if tree.stat().st_dev != at.stat().st_dev:
        return False
    probes = [at / "probe", at / "probe-copy"]
    try:
        probes[0].write_bytes(bytes(4096))
        with probes[0].open("rb") as source, probes[1].open("wb") as copy:
            fcntl.ioctl(copy, FICLONE, source.fileno())
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        return False
    finally:
        for probe in probes:
            probe.unlink(missing_ok=True)
    return True
