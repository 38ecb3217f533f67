"""Files in the directories of a compute's account.

In place of each there may be anything: a link to a file of ours, a pipe that nobody writes to,
a file without end. So what is read is a regular file and bounded. Nothing of ours is written there
(`branch_data.write_for`).
"""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from controlplane.compute.tree import REGULAR, open_directory

# What opening says of a missing file, of a link or a socket that stands in for it, and of a file
# that its owner holds by a lease (fcntl(2), F_SETLEASE), for which opening would have to wait.
ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EAGAIN}


def read_regular(
    path: Path | str, limit: int, *, within: int | None = None, from_end: bool = False
) -> bytes:
    """At most `limit` bytes of a regular file: its first, or its last. `path` is relative to the
    descriptor `within` where there is one, and is then a single name; else all directories in it
    must be ours.

    Empty where there is none; a link, a directory or a pipe is none.
    """
    try:
        descriptor = os.open(path, REGULAR, dir_fd=within)
    except OSError as error:
        if error.errno in ABSENT:
            return b""
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return b""
        begin = max(0, found.st_size - limit) if from_end else 0
        return os.pread(descriptor, limit, begin)
    finally:
        os.close(descriptor)


def remove_from(directory: Path, *names: str) -> None:
    """Remove these files from `directory`, where they are there; a link to another is none."""
    try:
        with open_directory(directory) as descriptor:
            for name in names:
                with suppress(FileNotFoundError, IsADirectoryError):
                    os.unlink(name, dir_fd=descriptor)
    except OSError as error:
        if error.errno not in ABSENT:
            raise
