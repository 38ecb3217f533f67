"""Checks whether a copy will fit before it is begun."""

import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from controlplane.compute.host.cloning import shares_blocks
from controlplane.compute.host.tree import TreeUntrusted, tree_size

# Bytes for the rows and the lists, and for what is written while the copy is made.
MARGIN_BYTES = 256 << 20


class NoRoom(Exception):
    """The copy does not fit; the message says how much space is needed and how much is left."""


def require_room(trees: Iterable[Path], *, at: Path) -> None:
    """Raise NoRoom if copies of the trees do not fit into the directory `at`, which only Perch
    uses. A tree may be missing, or refused for what is in it: whoever copies it says so."""
    trees = [tree for tree in trees if tree.exists()]
    needed = MARGIN_BYTES
    if not (all(tree.stat().st_dev == at.stat().st_dev for tree in trees) and shares_blocks(at)):
        for tree in trees:
            with suppress(TreeUntrusted, OSError):
                needed += tree_size(tree)
    free = shutil.disk_usage(at).free
    if free < needed:
        raise NoRoom(f"{at.parent} has {free / 1e9:.1f} GB left, and {needed / 1e9:.1f} are needed")
