"""A branch's history as a band, which the server draws as SVG, as a sentence, and as rows: what
happened in it, and the commits that removed tables."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil, sqrt
from typing import Any

from django.utils.timezone import localtime

from console.api.errors import Failure
from console.api.management_api import ManagementAPI
from console.api.resources.history import Commits, Gap, History, PastMoment, Removal
from console.operations.timescale import STRIP_WIDTH, Mark, Scale, boxes, percent
from console.pages.problems import words_beside
from console.templatetags.console_tags import size

# In units of the picture, down: where the band begins and how high it is.
TOP, HEIGHT = 14, 36
# The tallest and the smallest bar of commits.
TALLEST, SMALLEST = 30, 5
# The most marks of one kind that are drawn, the newest: more would hide each other.
MAX_MARKS = 150
# The most intervals between times on the axis, so that they fit on a phone.
MAX_TIMES = 4
# The shortest interval that the slider of the page distinguishes, and how many there are at most.
MIN_STEP, MAX_STEPS = 1, 1440
# A latest moment this near to now counts as now.
NOW_WITHIN = timedelta(minutes=1)
NO_HISTORY = "No history: history_retention_seconds is 0."
NO_HISTORY_YET = "No history yet. It begins with the first full copy of the data."


@dataclass(frozen=True)
class Band:
    # The first and the last moment, exact to the microsecond.
    earliest: str
    latest: str
    # SVG paths, in units of STRIP_WIDTH across and 64 down.
    kept: str
    unread: str
    gaps: str
    commits: str
    # The places of marks, in percent of the width.
    bases: Sequence[str]
    restores: Sequence[str]
    removals: Sequence[str]
    axis: Sequence[Mark]
    summary: str
    # The slider over the band: the seconds of a step, and how many steps it has.
    step: int
    steps: int
    # The place of the chosen moment; "" if none is chosen.
    chosen: str


@dataclass(frozen=True)
class Happening:
    """Something in the history, as a row of the table beside the band."""

    at: datetime
    what: str
    detail: str


def band(history: History, *, chosen: datetime | None = None) -> Band | None:
    """Draw the history from its first to its last moment; None if there is none."""
    if history.earliest is None or history.latest is None:
        return None
    length = (history.latest - history.earliest).total_seconds()
    step = max(MIN_STEP, ceil(length / MAX_STEPS))
    # Rounded up, because otherwise each picture would differ from the one before.
    end = datetime.fromtimestamp(ceil(history.latest.timestamp() / step) * step, UTC)
    scale = Scale(history.earliest, max(end, history.earliest + timedelta(seconds=step)))
    # A short gap is drawn wide enough to be seen.
    gaps = [
        (low := scale.x(gap.since), max(scale.x(gap.until or scale.end), low + 4))
        for gap in history.gaps
    ]
    read = scale.x(history.commits_until or scale.end) if _is_unread(history) else STRIP_WIDTH
    return Band(
        earliest=PastMoment(history.earliest).text,
        latest=PastMoment(history.latest).text,
        kept=boxes([(0, read)], top=TOP, height=HEIGHT),
        unread=boxes([(read, STRIP_WIDTH)], top=TOP, height=HEIGHT) if _is_unread(history) else "",
        gaps=boxes(gaps, top=TOP, height=HEIGHT),
        commits=_bars(history, scale),
        bases=_places(scale, [base.at for base in history.bases]),
        restores=_places(scale, [one.at for one in history.restores]),
        removals=_places(scale, [one.at for one in history.removals]),
        axis=scale.marks_of_day(most=MAX_TIMES),
        summary=summary(history),
        step=step,
        steps=ceil(scale.seconds / step),
        chosen=next(iter(_places(scale, [chosen] if chosen else [])), ""),
    )


def _bars(history: History, scale: Scale) -> str:
    """Return a bar for each period with commits. Heights grow with the root of the count: one
    commit in a period remains visible beside a thousand in another."""
    shown = [
        (low, high, one.count)
        for one in history.commits
        if (low := scale.x(one.since)) < STRIP_WIDTH
        and (high := scale.x(_end(one, scale))) > 0
        and one.count
    ]
    most = max((count for _, _, count in shown), default=0)
    bars = []
    for low, high, count in shown:
        up = SMALLEST + round((TALLEST - SMALLEST) * sqrt(count / most))
        bars.append(f"M{low} {TOP + HEIGHT}v-{up}h{max(high - low - 1, 2)}v{up}z")
    return "".join(bars)


def _end(one: Commits, scale: Scale) -> datetime:
    # A server may say that a period lasts longer than there are dates.
    return one.since + timedelta(seconds=min(one.seconds, scale.seconds))


def _places(scale: Scale, moments: Iterable[datetime]) -> list[str]:
    shown = [at for at in moments if scale.begin <= at <= scale.end]
    return [percent(scale.place(at)) for at in shown[-MAX_MARKS:]]


def summary(history: History) -> str:
    """Say what is kept, in one sentence."""
    if history.earliest is None or history.latest is None:
        return NO_HISTORY if history.retention == 0 else NO_HISTORY_YET
    bases = len(history.bases)
    taken = "" if history.disk_bytes is None else f", {size(history.disk_bytes)} on the disk"
    until = history.commits_until if _is_unread(history) else None
    unread = f"; commits since {time_and_day(until)} are not read yet" if until else ""
    is_now = history.latest > datetime.now(UTC) - NOW_WITHIN
    return (
        f"From {time_and_day(history.earliest)} to "
        f"{'now' if is_now else time_and_day(history.latest)}, "
        f"{bases} full {'copy' if bases == 1 else 'copies'}, "
        f"{size(history.log_bytes)} of log{taken}; {_gaps(history.gaps)}{unread}."
    )


def _is_unread(history: History) -> bool:
    """Whether the newest commits are not known, so that a time without any may have had some."""
    until, latest = history.commits_until, history.latest
    return bool(until and latest and latest - until > timedelta(seconds=MIN_STEP))


def _gaps(gaps: Sequence[Gap]) -> str:
    if not gaps:
        return "no gaps"
    gap = gaps[-1]
    until = f"to {time_and_day(gap.until)}" if gap.until else "on"
    which = f"from {time_and_day(gap.since)} {until}" + (f" ({gap.reason})" if gap.reason else "")
    return f"a gap {which}" if len(gaps) == 1 else f"{len(gaps)} gaps, the last {which}"


def time_and_day(at: datetime) -> str:
    """Return a time in words, in the reader's zone, as “12:04 yesterday”."""
    local = localtime(at)
    days = (localtime(datetime.now(UTC)).date() - local.date()).days
    day = {0: "today", 1: "yesterday"}.get(days, f"on {local.day} {local:%b}")
    return f"{local:%H:%M} {day}"


def happenings(history: History) -> list[Happening]:
    """Return what the band shows, apart from commits, the newest first."""
    found = [
        *(
            Happening(base.at, "Full copy", size(base.size) if base.size else "")
            for base in history.bases
        ),
        *(Happening(one.at, "Restore", "") for one in history.restores),
        *(
            Happening(one.at, "Tables removed", f"{one.files} file{'' if one.files == 1 else 's'}")
            for one in history.removals
        ),
    ]
    for gap in history.gaps:
        until = f"until {localtime(gap.until):%Y-%m-%d %H:%M:%S}" if gap.until else "until now"
        reason = f"{until}: {gap.reason}" if gap.reason else until
        found.append(Happening(gap.since, "Gap", reason))
    return sorted(found, key=lambda one: one.at, reverse=True)


# The smallest difference between two moments.
ONE_MICROSECOND = timedelta(microseconds=1)
MAX_SHOWN = 10


def undos(history: History) -> list[tuple[Removal, str]]:
    """Return the commits that removed tables, each with the moment just before it."""
    newest = list(reversed(history.removals))[:MAX_SHOWN]
    return [(one, PastMoment(one.at - ONE_MICROSECOND).text) for one in newest]


def newest_history(
    api: ManagementAPI, project_id: str, branch_id: str
) -> tuple[History, dict[str, Any]]:
    """Return the history with its newest commits, which the server may not have read yet, and the
    context that says so to `_undos.html`."""
    history = api.history.of_branch(project_id, branch_id)
    if history.latest is None:
        return history, {"has_looked": True}
    try:
        # To answer this, the server reads the log up to the present.
        api.history.resolve(project_id, branch_id, PastMoment(history.latest))
    except Failure as error:
        return history, {"has_looked": True, "not_looked": words_beside(error)}
    return api.history.of_branch(project_id, branch_id), {"has_looked": True}
