"""Events are removed after the operator's number of days, and beyond a number per account."""

from datetime import timedelta

import pytest
from django.conf import LazySettings
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from controlplane.events.types import EventType
from controlplane.models import Account, Event, Host
from controlplane.operations import event_retention
from controlplane.operations.event_retention import forget_events


def write(account: Account | None, count: int, *, days_ago: float = 0) -> None:
    at = timezone.now() - timedelta(days=days_ago)
    Event.objects.bulk_create(
        Event(
            account=account,
            type=EventType.PROJECT_UPDATED,
            actor_type="user",
            summary=str(number),
            at=at + timedelta(seconds=number),
        )
        for number in range(count)
    )


@pytest.mark.parametrize(("days", "left"), [(89, 5), (91, 0)])
def test_events_are_removed_after_the_days(
    account: Account, host: Host, days: float, left: int
) -> None:
    write(account, 5, days_ago=days)
    write(None, 1)
    forget_events(host)
    assert Event.objects.count() == left + 1


def test_events_are_removed_in_batches(
    account: Account, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_retention, "AT_ONCE", 10)
    monkeypatch.setattr(event_retention, "MOST_BATCHES", 3)
    write(account, 45, days_ago=100)
    with CaptureQueriesContext(connection) as captured:
        forget_events(host)
    assert sum("DELETE" in query["sql"] for query in captured) == 3
    assert Event.objects.count() == 15
    # The oldest were removed first.
    assert Event.objects.order_by("at")[0].summary == "30"
    forget_events(host)
    assert Event.objects.count() == 0


def test_events_beyond_the_number_of_an_account_are_removed(
    account: Account, host: Host, settings: LazySettings
) -> None:
    settings.EVENTS_PER_ACCOUNT = 10
    bob = Account.objects.create(name="bob")
    write(account, 25)
    write(bob, 10)
    write(None, 12)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE controlplane_event")
    forget_events(host)
    assert [Event.objects.filter(account=one).count() for one in (account, bob, None)] == [10] * 3
    kept = Event.objects.filter(account=account).order_by("at")
    assert kept[0].summary == "15"
