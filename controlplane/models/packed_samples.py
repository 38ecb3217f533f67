"""Packs the samples of an endpoint into bytes (`endpoint_metrics`).

Recent samples follow one another in records of equal length, so that a new one is appended. A block
has the samples of six hours in steps of five minutes, each number with 8 significant bits,
compressed. A number is then wrong by at most 0.4 %, and a busy endpoint's block takes about a
kilobyte.
"""

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# What a sample shows of its moment. Of several samples, the highest value counts.
GAUGES = (
    "connections_active",
    "connections_idle",
    "connections_idle_in_transaction",
    "active_queries",
    "memory_bytes",
    "database_bytes",
)
# What has been counted since the sample before. Of several samples, the sum counts.
COUNTERS = (
    "cpu_milliseconds",
    "cache_hits",
    "cache_misses",
    "rows_read",
    "rows_written",
    "deadlocks",
    "log_bytes",
    "wakes",
)
# The numbers of a sample, beginning with how many samples it sums up.
FIELDS = ("samples", *GAUGES, *COUNTERS)
# Minutes of a block's steps.
STEP = 5
# The minute of the day, and the numbers.
_RECORD = struct.Struct(f">H{len(FIELDS)}f")
_NUMBERS = struct.Struct(f">{len(FIELDS)}f")
_STATE = struct.Struct(f">{len(GAUGES) + 2 * len(COUNTERS)}q")
# The upper half of a 32-bit float holds 8 significant bits; half of the 9th rounds to the nearest.
_ROUNDED = 1 + 2**-9

# What the fields of a minute or a step add up to, in the order of FIELDS.
Numbers = Sequence[float]


@dataclass(frozen=True)
class State:
    """What the last sample has shown."""

    # In the order of GAUGES.
    gauges: Sequence[int]
    # In the order of COUNTERS: the counts as they were read, by which the next sample knows what
    # was added, and all that was ever added.
    counts: Sequence[int]
    totals: Sequence[int]

    def packed(self) -> bytes:
        return _STATE.pack(*self.gauges, *self.counts, *self.totals)

    @classmethod
    def unpacked(cls, packed: bytes) -> "State":
        numbers = _STATE.unpack(packed)
        first, second = len(GAUGES), len(GAUGES) + len(COUNTERS)
        return cls(numbers[:first], numbers[first:second], numbers[second:])


def appended(samples: bytes, minute: int, numbers: Numbers) -> bytes:
    """Add a sample of this minute of the day, which is not earlier than the last one: its gauges
    and what was added to its counts. Samples of the same minute become one."""
    if samples:
        last_minute, *last = _RECORD.unpack(samples[-_RECORD.size :])
        if last_minute == minute:
            numbers = merged([last[1:], numbers], FIELDS[1:])
            samples = samples[: -_RECORD.size]
    return samples + _RECORD.pack(minute, 1, *numbers)


def minutes_of(samples: bytes) -> dict[int, Numbers]:
    """Return the samples by their minutes of the day."""
    return {minute: numbers for minute, *numbers in _RECORD.iter_unpack(samples)}


def merged(several: Iterable[Numbers], fields: Sequence[str] = FIELDS) -> Numbers:
    """Sum up several samples: the highest values of gauges, and the sums of all else."""
    columns = zip(fields, zip(*several, strict=True), strict=True)
    return [max(column) if name in GAUGES else sum(column) for name, column in columns]


def in_steps(minutes: Mapping[int, Numbers], *, first: int) -> dict[int, Numbers]:
    """Sum up minutes by the numbers of their steps, counted from the minute `first`."""
    steps: dict[int, list[Numbers]] = {}
    for minute, numbers in minutes.items():
        steps.setdefault((minute - first) // STEP, []).append(numbers)
    return {step: merged(several) for step, several in steps.items()}


def block_of(steps: Mapping[int, Numbers]) -> bytes:
    rows = [_NUMBERS.pack(*(number * _ROUNDED for number in numbers)) for numbers in steps.values()]
    # Field by field, and the exponents before the digits: similar bytes beside each other.
    upper = [row[place : place + 1] for place in range(0, _NUMBERS.size, 4) for row in rows]
    lower = [row[place : place + 1] for place in range(1, _NUMBERS.size, 4) for row in rows]
    packed = zlib.compress(b"".join([*upper, *lower]), level=9, wbits=-15)
    return bytes([len(steps), *steps]) + packed


def steps_of(block: bytes) -> dict[int, Numbers]:
    """Return the samples of a block by the numbers of their steps."""
    count = block[0]
    plain = zlib.decompress(block[1 + count :], wbits=-15)
    half = len(plain) // 2
    steps: dict[int, Numbers] = {}
    for row in range(count):
        halves = zip(plain[row:half:count], plain[half + row :: count], strict=True)
        numbers = b"".join(bytes([one, other, 0, 0]) for one, other in halves)
        steps[block[1 + row]] = _NUMBERS.unpack(numbers)
    return steps
