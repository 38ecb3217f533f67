"""Reads and removes files in directories that belong to a compute's account, and reads its
processes' files in /proc.

That account may have put anything in place of a file: a link to a file of ours, a pipe without a
writer, an endless file. So only regular files are read, up to a limit. Files that only Perch may
change are elsewhere (`branch_data.write_branch_file`).
"""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from controlplane.compute.host.accounts import Account, set_owner
from controlplane.compute.host.tree import NEW_FILE, REGULAR, open_directory, open_file

# Errors of opening a missing file, a link or a socket in a file's place, and a file on which its
# owner holds a lease (fcntl(2), F_SETLEASE), so that opening it would have to wait.
ABSENT_ERRNOS = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EAGAIN}
MAX_PROCESS_FILE_BYTES = 64 << 10


def read_regular(
    path: Path | str, limit: int, *, dir_fd: int | None = None, from_end: bool = False
) -> bytes:
    """The first `limit` bytes of a regular file, or the last if `from_end`. With `dir_fd`, the
    descriptor of a directory, `path` is a single name in it. Otherwise all directories in `path`
    must be ours.

    Returns b"" if there is no regular file; links, directories and pipes are none.
    """
    try:
        descriptor = os.open(path, REGULAR, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in ABSENT_ERRNOS:
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


def put_into(directory: Path, name: str, text: str, account: Account, *, mode: int = 0o600) -> None:
    """Make the file `name` of the account in `directory`, in place of what is there. The account
    may change it. Raises OSError."""
    remove_from(directory, name)
    with (
        open_directory(directory) as place,
        os.fdopen(os.open(name, NEW_FILE, mode, dir_fd=place), "w") as file,
    ):
        file.write(text)
        os.fchmod(file.fileno(), mode)
        set_owner(file.fileno(), account)


def remove_from(directory: Path, *names: str) -> None:
    """Remove these files from `directory`, if they are there. Does nothing if it is a link."""
    try:
        with open_directory(directory) as descriptor:
            for name in names:
                with suppress(FileNotFoundError, IsADirectoryError):
                    os.unlink(name, dir_fd=descriptor)
    except OSError as error:
        if error.errno not in ABSENT_ERRNOS:
            raise


def process_file(pid: int | str, name: str, limit: int = MAX_PROCESS_FILE_BYTES) -> bytes:
    """The first `limit` bytes of a file of the process in /proc; b"" if it has ended. A process can
    make its command line and its environment as long as its memory."""
    with suppress(OSError), open_file(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC) as file:
        return os.read(file, limit)
    return b""
