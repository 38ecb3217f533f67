"""Small filesystems in files: to be filled, or of a kind that the host does not use."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SBIN = "/usr/sbin:/sbin"
MKFS = {"ext4": ("mkfs.ext4", "-q", "-m", "0"), "xfs": ("mkfs.xfs", "-q", "-m", "reflink=1")}


@contextmanager
def mounted(kind: str, *, size: int) -> Iterator[Path]:
    """Mount a new filesystem of `size` bytes. Yields its empty directory, which other accounts may
    enter. Skips the test with the reason if that is not possible."""
    with _prepared(kind) as (image, place):
        with image.open("wb") as file:
            file.truncate(size)
        program, *options = MKFS[kind]
        run(shutil.which(program, path=SBIN) or program, *options, str(image))
        with _on(image, place, kind):
            # The path is short, because the paths of a service's sockets below it are limited.
            state = place / "s"
            state.mkdir()
            yield state


@contextmanager
def after_power_cut(state: Path, kind: str) -> Iterator[Path]:
    """Yield the directory that `mounted` gave as it would be after a power cut now.

    The copy of the disk is taken while its filesystem is mounted, so it lacks everything that the
    kernel still holds in memory. Mounting it replays the filesystem's journal. What the disk itself
    has not flushed counts as written, so the copy has at least what a real disk would have.
    """
    with _prepared(kind) as (image, place):
        run("cp", "--sparse=always", str(state.parent.parent / "image"), str(image))
        with _on(image, place, kind):
            yield place / state.name


@contextmanager
def _prepared(kind: str) -> Iterator[tuple[Path, Path]]:
    """Yield a path for the image, and the empty directory to mount it on."""
    if os.geteuid() != 0:
        pytest.skip(f"only root may mount a filesystem of kind {kind}")
    program = MKFS[kind][0]
    if shutil.which(program, path=SBIN) is None:
        pytest.skip(f"{program} is not installed")
    with tempfile.TemporaryDirectory(prefix="perch-") as scratch:
        place = Path(scratch, "on")
        place.mkdir()
        Path(scratch).chmod(0o711)
        yield Path(scratch, "image"), place


@contextmanager
def _on(image: Path, place: Path, kind: str) -> Iterator[None]:
    """Mount the image's filesystem on `place` while the block lasts."""
    # A copy has the identity of the original, which XFS refuses to mount twice.
    options = "loop,nouuid" if kind == "xfs" else "loop"
    try:
        run("mount", "-o", options, str(image), str(place))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{kind} cannot be mounted here: {error.stderr.strip()}")
    try:
        yield
    finally:
        run("umount", "--lazy", str(place))


def free_bytes(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


@contextmanager
def filled(place: Path, *, leaving: int) -> Iterator[None]:
    """Fill the filesystem with a file, except for `leaving` bytes."""
    filler = place.parent / "filler"
    descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        size = 0
        # The filesystem needs a part of the free space to describe the file.
        while (more := free_bytes(place) - leaving) > 0:
            try:
                os.posix_fallocate(descriptor, size, more)
            except OSError:
                break
            size += more
        yield
    finally:
        os.close(descriptor)
        filler.unlink()


def run(*command: str) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout
