"""Log that a second host has received goes on with a chain from the store, or is left out."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from controlplane.compute.host.tree import SEGMENT_SIZE
from controlplane.compute.host.wal import (
    HAS_LONG_HEADER,
    LONG_HEADER,
    PAGE,
    PAGE_HEADER,
    RECORD_HEADER,
    SHORT_HEADER,
    segment_name,
)
from controlplane.history.local.chain import Chain
from controlplane.history.store.received_logs import add_received

SYSTEM = 7
START = SEGMENT_SIZE


def page(at: int, header: int, previous: int) -> tuple[bytes, int]:
    """A page at the position, full of empty records. Returns it and where its last one begins."""
    flags = HAS_LONG_HEADER if header == LONG_HEADER else 0
    content = PAGE_HEADER.pack(0xD118, flags, 1, at, SYSTEM)[:header].ljust(header, b"\0")
    while len(content) + RECORD_HEADER.size <= PAGE:
        record = at + len(content)
        content += RECORD_HEADER.pack(RECORD_HEADER.size, 0, previous, 0, 0, 0)
        previous = record
    return content.ljust(PAGE, b"\0"), previous


@pytest.mark.parametrize("is_other", [False, True])
def test_log_from_a_boundary_on_follows_the_last_record(tmp_path: Path, is_other: bool) -> None:
    """The store has the log exactly to the end of a segment, so no byte is in both."""
    chain = Chain(tmp_path / "000001", SYSTEM, 1, START + SEGMENT_SIZE, datetime.now(UTC))
    chain.log.mkdir(parents=True)
    last, record = page(START + SEGMENT_SIZE - PAGE, SHORT_HEADER, 0)
    (chain.log / segment_name(1, START)).write_bytes(bytes(SEGMENT_SIZE - PAGE) + last)
    received = tmp_path / "received"
    received.mkdir()
    first, _ = page(chain.copied, LONG_HEADER, record - 24 if is_other else record)
    name = segment_name(1, chain.copied)
    (received / f"{name}.partial").write_bytes(first.ljust(SEGMENT_SIZE, b"\0"))
    assert add_received(chain, received) is not is_other
    assert (chain.log / name).exists() is not is_other
    assert chain.copied == START + SEGMENT_SIZE * (1 if is_other else 2)
