"""Lists of events for callers: of an account or a project, newest first, with a cursor."""

from datetime import UTC, datetime, timedelta

from django.db.models import Q, QuerySet

from controlplane.models import Account, Event
from controlplane.services.errors import Invalid
from controlplane.services.event_filters import EventFilter
from controlplane.services.projects import find_project

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def events_of(account: Account, project_id: str | None) -> QuerySet[Event]:
    """The account's events, including those of its deleted projects, or the events of one project.

    Raises NotFound.
    """
    if project_id is None:
        return Event.objects.filter(account=account)
    return Event.objects.filter(project_id=find_project(account, project_id).id)


def list_events(
    account: Account,
    project_id: str | None,
    wanted: EventFilter,
    *,
    cursor: str | None,
    limit: int,
) -> list[Event]:
    """At most `limit` events, newest first, all older than `cursor`.

    Raises NotFound, and Invalid for a cursor that no page can have had.
    """
    events = wanted.narrow(events_of(account, project_id))
    if cursor is not None:
        at, number = _place_of(cursor)
        # Events before that time, or at that time with a smaller id. An index is used for the first
        # condition.
        events = events.filter(at__lte=at).filter(Q(at__lt=at) | Q(id__lt=number))
    return list(events.order_by("-at", "-id")[:limit])


def cursor_of(event: Event) -> str:
    """The position of an event in the list: its time in microseconds since 1970, and its id."""
    return f"{(event.at - EPOCH) // MICROSECOND}-{event.id}"


def _place_of(cursor: str) -> tuple[datetime, int]:
    try:
        microseconds, number = (int(part) for part in cursor.split("-"))
        return EPOCH + microseconds * MICROSECOND, number
    except (ValueError, OverflowError):
        raise Invalid("invalid cursor: not of an earlier page", fields=["cursor"]) from None
