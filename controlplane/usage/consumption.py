"""What an account and its projects have consumed: by hour, day and consumption period."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from controlplane import clock
from controlplane.api.responses.shared import subscription_type
from controlplane.models import Account, Consumed, Project, Span, Usage
from controlplane.models.consumed import NOTHING, next_period, period_of, previous_period
from controlplane.models.consumption import (
    consumed_by_projects,
    history_of_account,
    history_of_projects,
    projects_between,
)
from controlplane.services.errors import Invalid, OutsideBounds

# The namespace of the ids of consumption periods, which are version 5 UUIDs.
PERIODS = uuid.UUID("4f0f7c52-8b60-4b6c-9a2d-6d6fb3c0a5e1")


@dataclass(frozen=True)
class Granularity:
    span: Span
    # How far back consumption is known at this granularity.
    reach: timedelta

    def start_of(self, time: datetime) -> datetime:
        if self.span == Span.MONTH:
            return period_of(time)
        whole = time.replace(minute=0, second=0, microsecond=0)
        return whole.replace(hour=0) if self.span == Span.DAY else whole

    def end_of(self, start: datetime) -> datetime:
        """The end of the hour, day or month that begins at `start`."""
        if self.span == Span.MONTH:
            return next_period(start)
        return start + (timedelta(days=1) if self.span == Span.DAY else timedelta(hours=1))


GRANULARITIES: Mapping[str, Granularity] = {
    "hourly": Granularity(Span.HOUR, timedelta(hours=168)),
    "daily": Granularity(Span.DAY, timedelta(days=60)),
    "monthly": Granularity(Span.MONTH, timedelta(days=365)),
}
MONTHLY = GRANULARITIES["monthly"]


@dataclass(frozen=True)
class Timeframe:
    """An hour, day or month and what was consumed in it. If it is not over, `consumed` is until
    `now`."""

    start: datetime
    end: datetime
    now: datetime
    consumed: Consumed

    @property
    def average_bytes(self) -> int:
        """The average in the timeframe so far of the bytes that data and history took."""
        return self._average(self.consumed.byte_hours)

    @property
    def average_data_bytes(self) -> int:
        """The same without history."""
        return self._average(self.consumed.data_byte_hours)

    def _average(self, byte_hours: float) -> int:
        hours = (min(self.end, self.now) - self.start) / timedelta(hours=1)
        return int(byte_hours / hours) if hours > 0 else 0


# What of a timeframe is returned, by the fields' names.
Framed = Callable[[Timeframe], dict[str, Any]]


def account_history(
    account: Account, framed: Framed, *, since: datetime, until: datetime, granularity: str
) -> list[dict[str, Any]]:
    """What all projects of the account consumed together, by period, as
    `usage.consumption_fields.AnyPeriod` has it. Raises Invalid, OutsideBounds."""
    by, now = GRANULARITIES[granularity], clock.now()
    since, until = _rounded(by, since, until, now)
    history = history_of_account(account.id, by.span, since, until)
    return _periods(account, by, history, now, framed)


def projects_history(
    account: Account,
    framed: Framed,
    *,
    since: datetime,
    until: datetime,
    granularity: str,
    after: str | None,
    limit: int,
    only: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """What each project of the account consumed, deleted ones included, in the order of their ids:
    at most `limit` projects that follow the id `after`, and if `only` is not empty, only those in
    it. Raises Invalid, OutsideBounds."""
    by, now = GRANULARITIES[granularity], clock.now()
    since, until = _rounded(by, since, until, now)
    ids = _page(account, by, since, until, after=after, limit=limit, only=only)
    history = history_of_projects(account.id, ids, by.span, since, until)
    return [
        {"project_id": one, "periods": _periods(account, by, history[one], now, framed)}
        for one in ids
    ]


def projects_by_period(
    account: Account,
    *,
    since: datetime | None,
    until: datetime | None,
    after: str | None,
    limit: int,
) -> list[dict[str, Any]]:
    """What each project, at most `limit` of them, consumed in each period that overlaps the time
    from `since` to `until`, by default the present one, as
    `usage.consumption_fields.ProjectConsumption` has it. Raises Invalid, OutsideBounds."""
    now = clock.now()
    since, until = _rounded(MONTHLY, since or now, until or now, now)
    ids = _page(account, MONTHLY, since, until, after=after, limit=limit)
    history = history_of_projects(account.id, ids, Span.MONTH, since, until)
    present = consumed_by_projects(ids) if until > now else {}
    starts = []
    while since < until:
        starts.append(since)
        since = next_period(since)
    found = []
    for project_id in ids:
        for start in starts:
            used = history[project_id].get(start, NOTHING)
            frame = Timeframe(start, next_period(start), now, used)
            now_stored = present.get(project_id, NOTHING)
            stored = now_stored.stored_bytes + now_stored.history_bytes
            found.append(
                {
                    "project_id": project_id,
                    "period_id": _period_id(account, start),
                    "previous_period_id": _period_id(account, previous_period(start)),
                    "period_start": start,
                    "period_end": frame.end,
                    "data_storage_bytes_hour": int(used.byte_hours),
                    # Of data and history: the average if the period is over, else the present.
                    "synthetic_storage_size": frame.average_bytes if frame.end <= now else stored,
                    "data_transfer_bytes": used.transferred_bytes,
                    "written_data_bytes": used.written_bytes,
                    "compute_time_seconds": int(used.compute_seconds),
                    "active_time_seconds": int(used.active_seconds),
                    "updated_at": min(now, frame.end),
                }
            )
    return found


def _rounded(
    by: Granularity, since: datetime, until: datetime, now: datetime
) -> tuple[datetime, datetime]:
    """Extend the range to whole hours, days or months, up to the end of the present one at most.
    Raises Invalid, OutsideBounds."""
    if until < since:
        raise Invalid("invalid request: to is before from", fields=["to"])
    start = by.start_of(since)
    if start < by.start_of(now - by.reach):
        raise OutsideBounds(
            "the specified date-time range is outside the boundaries of the specified granularity: "
            "hourly reaches back 168 hours, daily 60 days and monthly a year; adjust from and to, "
            "or select a different granularity",
            fields=["from"],
        )
    last = by.start_of(min(until, now))
    # If `until` is the start of an hour, day or month, that one is not included, because `to` is
    # exclusive.
    end = last if last == until and last > start else by.end_of(last)
    return start, end


def _page(
    account: Account,
    by: Granularity,
    since: datetime,
    until: datetime,
    *,
    after: str | None,
    limit: int,
    only: Sequence[str] = (),
) -> list[str]:
    """Ids of projects. Raises Invalid if the account has no project with the id `after`."""
    if after and not (
        Project.objects.filter(account=account, id=after).exists()
        or Usage.objects.filter(account=account, project_id=after).exists()
    ):
        raise Invalid("invalid cursor: no such project", fields=["cursor"])
    return projects_between(
        account.id, by.span, since, until, after=after or "", limit=limit, only=only or None
    )


def _periods(
    account: Account,
    by: Granularity,
    history: Mapping[datetime, Consumed],
    now: datetime,
    framed: Framed,
) -> list[dict[str, Any]]:
    """Group the history into consumption periods, oldest first, with those of their timeframes in
    which something was consumed."""
    frames: dict[datetime, list[Timeframe]] = {}
    for start in sorted(history):
        frame = Timeframe(start, by.end_of(start), now, history[start])
        frames.setdefault(period_of(start), []).append(frame)
    return [
        {
            "period_id": _period_id(account, start),
            "period_plan": subscription_type(account),
            "period_start": start,
            # None for the present period.
            "period_end": next_period(start) if next_period(start) <= now else None,
            "consumption": [
                {"timeframe_start": frame.start, "timeframe_end": frame.end, **framed(frame)}
                for frame in of_period
            ],
        }
        for start, of_period in frames.items()
    ]


def _period_id(account: Account, start: datetime) -> uuid.UUID:
    return uuid.uuid5(PERIODS, f"{account.id} {start:%Y-%m}")
