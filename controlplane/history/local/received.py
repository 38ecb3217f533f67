"""Adds log that another host has received as it was written (`fleet.receivers.receivewal`) to a
chain that was brought from the store."""

import os
from pathlib import Path

from controlplane.compute.host.tree import SEGMENT_SIZE, open_directory
from controlplane.compute.host.wal import (
    PAGE,
    LogUnreadable,
    is_segment_of,
    records_of,
    segment_name,
    segment_start,
    write_sum,
)
from controlplane.fleet.receivers.receivewal import PARTIAL, opened, segments_in
from controlplane.history.local.chain import Chain

# Resource managers have numbers from 0 on.
NO_MANAGER = -1


def add_received(chain: Chain, received: Path) -> bool:
    """Let the chain go on with the segments in the directory, up to the end of the last one, behind
    whose last record are only zeros. Returns False, and changes nothing, if they do not go on with
    it. Raises OSError."""
    end = segment_start(chain.copied)
    with open_directory(received) as source:
        known = {name.removesuffix(PARTIAL): name for name in segments_in(source)}
        if not _continues(chain, source, known):
            return False
        while (name := segment_name(chain.timeline, end)) in known:
            content = _content(source, known[name])
            if not _is_of(chain, source, known[name]) or len(content) != SEGMENT_SIZE:
                break
            (chain.log / name).write_bytes(content)
            write_sum(chain.log / name)
            end += SEGMENT_SIZE
    chain.copied = max(chain.copied, end)
    return True


def _continues(chain: Chain, source: int, known: dict[str, str]) -> bool:
    """Whether the bytes before the chain's end are the same in both, or between two segments the
    records follow each other: branches that were created from one template have segments of the
    same names."""
    name = segment_name(chain.timeline, chain.copied)
    if name not in known or not _is_of(chain, source, known[name]):
        return False
    inside = chain.copied % SEGMENT_SIZE
    if inside == 0:
        return _follows(chain, name, _content(source, known[name])[:PAGE])
    first = inside - min(inside, PAGE)
    ours = (chain.log / name).read_bytes()[first:inside]
    return ours == _content(source, known[name])[first:inside]


def _follows(chain: Chain, name: str, page: bytes) -> bool:
    """Whether the records of the segment, which begins with the page, follow the chain's last."""
    (chain.log / name).write_bytes(page)
    try:
        with open_directory(chain.log) as log:
            start, end = chain.copied - SEGMENT_SIZE, chain.copied + PAGE
            for _ in records_of(log, chain.timeline, NO_MANAGER, start=start, end=end):
                pass
    except LogUnreadable:
        return False
    finally:
        (chain.log / name).unlink()
    return True


def _is_of(chain: Chain, source: int, name: str) -> bool:
    return is_segment_of(source, name, chain.timeline, chain.system_id)


def _content(source: int, name: str) -> bytes:
    with os.fdopen(opened(name, source), "rb") as file:
        return file.read(SEGMENT_SIZE)
