"""An endpoint's metrics as charts, which the server draws as SVG, with their rows for tables.

Lines are drawn in steps, as each point stands for a period. They have a gap where the endpoint did
not run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import floor, log10

from console.api.resources.endpoints import Metrics, Point
from console.operations.timescale import STRIP_WIDTH, Mark, Scale, Span, boxes, percent
from console.templatetags.console_tags import NOTHING, size

# The units of the pictures down; across, they are STRIP_WIDTH.
HEIGHT = 100
# The most intervals between times on the axis, so that they fit on a phone.
MAX_TIMES = 5
# What the largest number on an axis may be, times a power of ten.
ROUND_FACTORS = (1, 2, 4, 6, 8, 10)
MINUTE = timedelta(minutes=1)

Words = Callable[[float], str]


@dataclass(frozen=True)
class Series:
    label: str
    # None where there is nothing to show.
    value: Callable[[Point], float | None]


@dataclass(frozen=True)
class Chart:
    name: str
    title: str
    series: Sequence[Series]
    # Formats a value.
    words: Words
    # Sums up all points in a few words.
    summary: Callable[[Sequence[Point]], str]
    # What the values are, as the help below the title.
    about: str
    # The least value at the top of the axis.
    least: float
    # The top of the axis never lies higher; 0 for no limit.
    most: float = 0


@dataclass(frozen=True)
class Line:
    label: str
    # SVG paths in units of STRIP_WIDTH across and HEIGHT: the line, and the area beneath it.
    line: str
    area: str


@dataclass(frozen=True)
class Drawn:
    chart: Chart
    lines: Sequence[Line]
    # The lines of the grid, from the top: the place in percent of the height.
    grid: Sequence[Mark]
    summary: str
    # For the table: the time of each step, and its values as words.
    rows: Sequence[tuple[datetime, Sequence[str]]]


@dataclass(frozen=True)
class Axis:
    """The time axis that all charts share, with the endpoint's activity along it."""

    times: Sequence[Mark]
    # SVG paths of boxes, in units of STRIP_WIDTH across and 10 down: the time for which the
    # activity is known, and that in which the endpoint was active.
    known: str
    active: str
    # For how long the endpoint was active, in milliseconds; None if its activity is not known.
    active_ms: int | None


def _metric(label: str, name: str) -> Series:
    return Series(label, lambda point: point.value(name))


def _rate(name: str) -> Callable[[Point], float]:
    """The average of a sum over the seconds in which the endpoint ran."""
    return lambda point: point.value(name) / (60 * max(1, point.samples))


def _share(points: Sequence[Point]) -> float | None:
    """Return which part of the blocks was in the cache; None if no blocks were needed."""
    found = _total(points, "cache_hits")
    needed = found + _total(points, "cache_misses")
    return found / needed if needed else None


def count(value: float) -> str:
    """Format a number briefly: “0.25”, “640”, “12.5 k”."""
    for unit, amount in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if value >= amount:
            return f"{value / (1e3 if unit == 'k' else amount):.3g}\N{NO-BREAK SPACE}{unit}"
    if 0 < value < 0.001:
        return "< 0.001"
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.2g}"


def _bytes(value: float) -> str:
    return size(int(value)).replace(".0 ", " ").replace(" ", "\N{NO-BREAK SPACE}")


def _percentage(value: float) -> str:
    # Rounded down, as 100 % means that nothing was missing.
    return f"{floor(value * 1000) / 10:g}\N{NO-BREAK SPACE}%"


def _highest(*names: tuple[str, str]) -> Callable[[Sequence[Point]], str]:
    def words(points: Sequence[Point]) -> str:
        found = (
            f"{count(max(point.value(name) for point in points))} {label}" for label, name in names
        )
        return f"At most {', '.join(found)}"

    return words


def _total(points: Sequence[Point], name: str) -> float:
    return sum(point.value(name) for point in points)


def _cpu(points: Sequence[Point]) -> str:
    minutes = sum(point.samples for point in points) or 1
    highest = max(map(_rate("cpu_seconds"), points))
    average = _total(points, "cpu_seconds") / (60 * minutes)
    return f"On average {count(average)} vCPU, at most {count(highest)}"


def _cache(points: Sequence[Point]) -> str:
    share = _share(points)
    return "No blocks were needed" if share is None else f"{_percentage(share)} of all blocks"


def _rows(points: Sequence[Point]) -> str:
    read, written = _total(points, "rows_read"), _total(points, "rows_written")
    return f"{count(read)} read, {count(written)} written in all"


def _database_size(point: Point) -> float | None:
    # A sample has 0 until the size is measured for the first time.
    return point.value("database_bytes") or None


def _latest_size(points: Sequence[Point]) -> str:
    measured = [found for found in map(_database_size, points) if found]
    return f"Latest {_bytes(measured[-1])}" if measured else "Not measured yet"


def _times(name: str) -> Callable[[Sequence[Point]], str]:
    def words(points: Sequence[Point]) -> str:
        total = int(_total(points, name))
        return f"{total:,} in all" if total else "None"

    return words


STATES = (
    ("active", "connections_active"),
    ("idle", "connections_idle"),
    ("idle in transaction", "connections_idle_in_transaction"),
)
CHARTS = (
    Chart(
        "connections",
        "Connections",
        [_metric(label.capitalize(), name) for label, name in STATES],
        count,
        _highest(*STATES),
        "The most at one time, by state. Pooled clients share connections.",
        least=4,
    ),
    Chart(
        "cpu",
        "CPU",
        [Series("CPU", _rate("cpu_seconds"))],
        count,
        _cpu,
        "vCPUs in use, on average over each step.",
        least=0.01,
    ),
    Chart(
        "memory",
        "Memory",
        [_metric("Memory", "memory_bytes")],
        _bytes,
        lambda points: f"At most {_bytes(max(point.value('memory_bytes') for point in points))}",
        "Memory of the Postgres processes; shared memory counts once.",
        least=1e7,
    ),
    Chart(
        "cache",
        "Cache hits",
        [Series("Cache hits", lambda point: _share([point]))],
        _percentage,
        _cache,
        "The share of blocks that were in shared buffers.",
        least=1,
        most=1,
    ),
    Chart(
        "size",
        "Database size",
        [Series("Database size", _database_size)],
        _bytes,
        _latest_size,
        "All databases of the branch.",
        least=1e7,
    ),
    Chart(
        "rows",
        "Rows per second",
        [Series("Read", _rate("rows_read")), Series("Written", _rate("rows_written"))],
        count,
        _rows,
        "Returned by scans, and inserted, updated or deleted.",
        least=0.1,
    ),
    Chart(
        "deadlocks",
        "Deadlocks",
        [_metric("Deadlocks", "deadlocks")],
        count,
        _times("deadlocks"),
        "Transactions that Postgres ended because they waited for each other.",
        least=2,
    ),
    Chart(
        "wakes",
        "Starts",
        [_metric("Starts", "wakes")],
        count,
        _times("wakes"),
        "Starts of the compute.",
        least=2,
    ),
)


def draw(metrics: Metrics, scale: Scale) -> list[Drawn]:
    """Draw all charts. There is at least one point."""
    return [_draw(chart, metrics, scale) for chart in CHARTS]


def _draw(chart: Chart, metrics: Metrics, scale: Scale) -> Drawn:
    values = [[series.value(point) for point in metrics.points] for series in chart.series]
    known = [value for found in values for value in found if value is not None]
    top = chart.most or round_up(max([chart.least, *known]))
    return Drawn(
        chart=chart,
        lines=[
            _line(series.label, metrics, found, scale, top)
            for series, found in zip(chart.series, values, strict=True)
        ],
        grid=[Mark(percent(place), chart.words(top * (1 - place / 100))) for place in (0, 50, 100)],
        summary=chart.summary(metrics.points),
        rows=[
            (point.at, [NOTHING if one is None else chart.words(one) for one in found])
            for point, *found in reversed(list(zip(metrics.points, *values, strict=True)))
        ],
    )


def round_up(value: float) -> float:
    """Return the next number that suits the top of an axis and can be halved."""
    unit: float = 10.0 ** floor(log10(value))
    return next(one * unit for one in ROUND_FACTORS if one * unit >= value * 0.999)


def _line(
    label: str, metrics: Metrics, values: Sequence[float | None], scale: Scale, top: float
) -> Line:
    step = timedelta(seconds=metrics.step)
    line, area = [], []
    edge = -1
    for point, value in zip(metrics.points, values, strict=True):
        if value is None:
            continue
        left, right = scale.x(point.at), scale.x(point.at + step)
        down = round(HEIGHT * (1 - min(value / top, 1)))
        line.append(f"V{down}H{right}" if left == edge else f"M{left} {down}H{right}")
        area.append(f"M{left} {HEIGHT}V{down}H{right}V{HEIGHT}z")
        edge = right
    return Line(label, "".join(line), "".join(area))


def axis(
    scale: Scale, since: datetime, spans: Sequence[Span], *, now: datetime | None = None
) -> Axis:
    """Make the axis. The activity is known since a moment; `spans` are its active periods. The
    scale may end a little after `now`, and that time does not count yet."""
    end = min(scale.end, now or scale.end)
    active = sum((max(min(high, end) - low, timedelta()) for low, high in spans), timedelta())
    return Axis(
        times=scale.marks_of_day(most=MAX_TIMES),
        known=boxes([(scale.x(since), STRIP_WIDTH)], top=0, height=10),
        # Widen very short activity, so that it stays visible.
        active=boxes(
            [(left := scale.x(low), max(scale.x(high), left + 3)) for low, high in spans],
            top=0,
            height=10,
        ),
        active_ms=round(active / timedelta(milliseconds=1)) if since < scale.end else None,
    )
