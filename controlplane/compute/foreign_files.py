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

# What opening says of a missing file, and of a link or a socket that stands in for it.
ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}


def read_regular(path: Path, limit: int, *, from_end: bool = False) -> bytes:
    """At most `limit` bytes of a regular file: its first, or its last.

    Empty where there is none; a link or a pipe is none.
    """
    try:
        descriptor = os.open(path, REGULAR)
    except OSError as error:
        if error.errno in ABSENT:
            return b""
        raise
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return b""
        if from_end:
            file.seek(max(0, found.st_size - limit))
        return file.read(limit)


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
