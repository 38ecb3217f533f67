"""What `up` needs of the host before it starts anything: open files, and room on the disk."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings
from django.core.management.base import CommandError

from controlplane.compute.space import LAST, in_words, make_room, space_at

# Each client of the proxy takes two, each running compute two of the worker's, beside some
# hundreds of its own.
ENOUGH_FILES = 4096


def raise_file_limit() -> str | None:
    """Let this process and its children open as many files as the host allows; what to say
    where that is too few, else None."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY or hard >= ENOUGH_FILES:
        return None
    return (
        f"This host lets a process open {hard} files only: about {max(0, hard - 300) // 2} "
        f"clients and computes at once, and others are refused. Allow {ENOUGH_FILES} or more "
        "(ulimit -Hn, LimitNOFILE= of a systemd unit, --ulimit nofile= of docker run) and "
        "start again."
    )


@contextmanager
def room_on_disk() -> Iterator[None]:
    """See that there is room to begin with, giving back the ballast where there is not; what
    fails inside because the disk has filled up ends with these words. Raises CommandError,
    OSError."""
    Path(settings.STATE_DIR).mkdir(parents=True, exist_ok=True)
    make_room()
    _refuse_full_disk()
    try:
        yield
    except CommandError:
        raise
    except Exception as error:
        _refuse_full_disk(error)
        raise


def _refuse_full_disk(cause: Exception | None = None) -> None:
    space = space_at(settings.STATE_DIR)
    if space.free < LAST:
        raise CommandError(
            f"the disk of the state directory {settings.STATE_DIR} is full: "
            f"{in_words(space.free)} free of {in_words(space.total)}. Nothing is lost. "
            "Remove something from it and start again"
        ) from cause
