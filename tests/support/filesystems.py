"""Small filesystems of the tests' own, on files: to fill up, or of a kind that the host has not."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MKFS = {"ext4": ("mkfs.ext4", "-q", "-m", "0"), "xfs": ("mkfs.xfs", "-q", "-m", "reflink=1")}


@contextmanager
def mounted(kind: str, *, size: int) -> Iterator[Path]:
    """An empty directory on a new filesystem of `size` bytes, which others may enter; the test is
    skipped, saying why, where that cannot be made."""
    program, *options = MKFS[kind]
    if os.geteuid() != 0:
        pytest.skip(f"only root may mount a filesystem of kind {kind}")
    if shutil.which(program, path="/usr/sbin:/sbin") is None:
        pytest.skip(f"{program} is not installed")
    with tempfile.TemporaryDirectory(prefix="perch-") as scratch:
        image, place = Path(scratch, "image"), Path(scratch, "on")
        with image.open("wb") as file:
            file.truncate(size)
        place.mkdir()
        Path(scratch).chmod(0o711)
        run(shutil.which(program, path="/usr/sbin:/sbin") or program, *options, str(image))
        try:
            run("mount", "-o", "loop", str(image), str(place))
        except subprocess.CalledProcessError as error:
            pytest.skip(f"{kind} cannot be mounted here: {error.stderr.strip()}")
        try:
            # Short: the sockets of a service are to fit below it.
            state = place / "s"
            state.mkdir()
            yield state
        finally:
            run("umount", "--lazy", str(place))


def free_bytes(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


@contextmanager
def filled(place: Path, *, leaving: int) -> Iterator[None]:
    """Have a file take all the room there but `leaving` bytes."""
    filler = place.parent / "filler"
    descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        size = 0
        # Some of what is free is the filesystem's own to use for describing the file.
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
