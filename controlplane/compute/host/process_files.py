"""Reads the files of /proc whose length the process itself chooses: a process can make its command
line and its environment as long as its memory."""

import os
from contextlib import suppress

MAX_BYTES = 64 << 10
# More than the kernel lets a program be started with.
MAX_ENVIRONMENT_BYTES = 6 << 20


def process_file(pid: int | str, name: str, *, most: int = MAX_BYTES) -> bytes:
    """The first `most` bytes of the file of the process; nothing if it has ended or is another
    account's."""
    with suppress(OSError):
        file = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(file, most)
        finally:
            os.close(file)
    return b""
