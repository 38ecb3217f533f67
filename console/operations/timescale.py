"""A period as a width: the places of moments in it, and the marks of its axis.

It is for pictures that the server draws as SVG. Positions are in percent, so that they fit any
width."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.utils.safestring import SafeString
from django.utils.timezone import localtime

# The least width, in percent of the whole, so that an instant is still visible.
MIN_WIDTH_PERCENT = 0.6
# The width of a strip in its own units. On the strip of a day, one unit is a minute.
STRIP_WIDTH = 1440
# The possible intervals between two marks of an axis, in seconds.
INTERVALS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800),
)

Span = tuple[datetime, datetime]


@dataclass(frozen=True)
class Bar:
    """The place of a period, in percent of the whole."""

    left: str
    width: str


@dataclass(frozen=True)
class Mark:
    """A mark of an axis: its place, in percent, and its label."""

    left: str
    label: str

    @property
    def is_at_end(self) -> bool:
        """Whether a label to the right of the mark would be cut off."""
        return float(self.left.removesuffix("%")) > 92


def lines(marks: Sequence[Mark]) -> SafeString:
    """Return the lines of the marks as SVG, which each strip of a picture repeats."""
    ends = (f'x1="{mark.left}" x2="{mark.left}" y1="0" y2="100%"' for mark in marks)
    return SafeString("".join(f"<line {one}/>" for one in ends))


@dataclass(frozen=True)
class Scale:
    """The beginning and the end of the whole."""

    begin: datetime
    end: datetime

    @classmethod
    def over(cls, spans: Sequence[Span | None]) -> "Scale | None":
        """Return the scale that covers these spans; None if none of them is known."""
        known = [moment for span in spans if span for moment in span]
        return cls(min(known), max(known)) if known else None

    @property
    def seconds(self) -> float:
        return (self.end - self.begin).total_seconds() or 1.0

    def bar(self, span: Span) -> Bar:
        """Return the place of a span. What is outside of the whole is cut off."""
        begin, end = (min(max(moment, self.begin), self.end) for moment in span)
        width = max((end - begin).total_seconds() / self.seconds * 100, MIN_WIDTH_PERCENT)
        return Bar(left=percent(min(self.place(begin), 100 - width)), width=percent(width))

    def marks_since_begin(self, most: int = 5) -> list[Mark]:
        """Return marks with times since the beginning, the first being 0."""
        step = self._interval(most)
        places = [place * step for place in range(int(self.seconds / step) + 1)]
        return [Mark(percent(at / self.seconds * 100), _since(at)) for at in places]

    def marks_of_day(self, most: int = 6) -> list[Mark]:
        """Return marks with times of day in the reader's time zone."""
        step = self._interval(most)
        ahead = (localtime(self.begin).utcoffset() or timedelta()).total_seconds()
        first = ((self.begin.timestamp() + ahead) // step + 1) * step - ahead
        times = [
            localtime(datetime.fromtimestamp(first + place * step, UTC))
            for place in range(int((self.end.timestamp() - first) / step) + 1)
        ]
        placed = [(self.place(at), _time_of_day(at, step)) for at in times]
        # A label at the edge would be cut off.
        return [Mark(percent(place), label) for place, label in placed if 8 < place < 92]

    def offset_ms(self, at: datetime | None) -> int | None:
        """Return the milliseconds from the beginning of the whole."""
        return round((at - self.begin).total_seconds() * 1000) if at else None

    def place(self, at: datetime) -> float:
        """Return the place of a moment, in percent of the whole."""
        return (at - self.begin).total_seconds() / self.seconds * 100

    def x(self, at: datetime) -> int:
        """Return the place of a moment in units of STRIP_WIDTH. What is outside of the whole is cut
        off."""
        return round(min(max(self.place(at), 0), 100) / 100 * STRIP_WIDTH)

    def _interval(self, most: int) -> float:
        """Return the seconds between two marks, so that there are at most `most` intervals."""
        return next((each for each in INTERVALS if self.seconds / each <= most), self.seconds)


def percent(value: float) -> str:
    return f"{value:.2f}%"


def boxes(places: Iterable[tuple[int, int]], *, top: int = 12, height: int = 20) -> str:
    """Return an SVG path of boxes from their left and right ends. Boxes that touch are merged."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(places):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return "".join(f"M{low} {top}h{high - low}v{height}H{low}z" for low, high in merged)


def _since(seconds: float) -> str:
    if seconds == 0:
        return "0"
    if seconds < 1:
        return f"{seconds * 1000:g} ms"
    if seconds < 60:
        return f"{seconds:g} s"
    if seconds < 3600:
        return f"{seconds / 60:g} min"
    return f"{seconds / 3600:g} h"


def _time_of_day(at: datetime, step: float) -> str:
    if step >= timedelta(days=1).total_seconds():
        return f"{at.day} {at:%b}"
    return f"{at:%H:%M:%S}" if step < 60 else f"{at:%H:%M}"
