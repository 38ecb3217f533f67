"""Streams of events: immediate, without a gap, and without cost for other accounts."""

import signal
import threading
import time
from contextlib import ExitStack

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.api import event_streams
from controlplane.api.event_streams import EventStream, Places
from controlplane.api.event_tail import MAX_WAITING, Reader, tail
from controlplane.models import Account, Event, Host
from controlplane.models import Project as Rows
from controlplane.services.monitoring import events
from controlplane.services.monitoring.events import (
    ID_LEAP,
    NOTHING,
    EventFilter,
    Position,
    Resumption,
    missed,
    position_now,
    position_of,
    read_tail,
    renumber_events,
    resumption,
)
from tests.controlplane.events.test_list_events import write
from tests.controlplane.rows import make_project
from tests.support.another_api import another_api
from tests.support.client import Client
from tests.support.event_stream import EventReader
from tests.support.processes import processes_of
from tests.support.project import Project, refusal
from tests.support.stack import Stack
from tests.support.waiting import wait_for


def rename(project: Project, name: str) -> None:
    project.client.patch(project.path, {"project": {"name": name}})


def names(events: list[dict[str, dict[str, dict[str, str]]]]) -> list[str]:
    return [event["changes"]["name"]["to"] for event in events]


def test_it_works(project: Project, bob: Client) -> None:
    with (
        EventReader(project.client).begin() as all_of_the_account,
        EventReader(project.client, project.path + "/events").begin() as of_the_project,
        EventReader(bob).begin() as of_another,
    ):
        rename(project, "first")
        (event,) = all_of_the_account.take(1)
        assert event == project.client.get("/events", limit=1)["events"][0]
        assert of_the_project.take(1) == [event]
        bob.post("/api_keys", {"key_name": "bobs"})
        assert [one["type"] for one in of_another.take(1)] == ["api_key.created"]
        began = time.monotonic()
        rename(project, "second")
        assert names(all_of_the_account.take(1)) == ["second"]
        assert time.monotonic() - began < 2
        key = project.client.post("/api_keys", {"key_name": "no project's"})
        assert all_of_the_account.take(1)[0]["type"] == "api_key.created"
        project.client.delete(f"/api_keys/{key['id']}")
        rename(project, "third")
        assert names(of_the_project.take(2)) == ["second", "third"]


def test_a_stream_with_filters(project: Project) -> None:
    query = {"type": "branch.*,endpoint.idle", "actor": "user"}
    with EventReader(project.client, project.path + "/events", **query).begin() as reader:
        rename(project, "passed over")
        project.client.patch(project.branch_path(), {"branch": {"protected": True}})
        assert [one["type"] for one in reader.take(1)] == ["branch.updated"]
    wrong = EventReader(project.client, type="branch.grown").response
    assert refusal(wrong)[0] == 400
    wrong = EventReader(project.client, last_event_id="yesterday").response
    assert refusal(wrong) == (400, 'last event id: no stream has sent "yesterday"')


def test_a_reader_that_reconnects_misses_nothing_and_gets_nothing_twice(project: Project) -> None:
    path = project.path + "/events"
    with EventReader(project.client, path).begin() as reader:
        at_the_beginning = reader.last_event_id
        rename(project, "0")
        reader.take(1)
        known = reader.last_event_id
    for number in range(1, 6):
        rename(project, str(number))
    with EventReader(project.client, path, last_event_id=known) as reader:
        assert names(reader.take(5)) == ["1", "2", "3", "4", "5"]
        rename(project, "6")
        assert names(reader.take(1)) == ["6"]
    # Also from before the first event, and for clients that cannot send headers.
    with EventReader(project.client, path, last_event_id=at_the_beginning) as reader:
        assert names(reader.take(7)) == ["0", "1", "2", "3", "4", "5", "6"]


@pytest.mark.thorough
def test_nothing_is_lost_or_doubled_with_many_writers_and_a_reconnecting_reader(
    project: Project, stack: Stack
) -> None:
    """Transactions of various lengths: their events become visible in another order than they were
    written."""
    account_id = account_of(project, stack)
    over = threading.Event()
    written: list[set[str]] = [set() for _ in range(4)]

    def write_on(number: int) -> None:
        with stack.database() as connection:
            for count in range(60):
                with connection.transaction():
                    summaries = [f"{number} {count} {part}" for part in range(2)]
                    for summary in summaries:
                        connection.execute(WRITE, [account_id, project.id, summary])
                        over.wait(0.004 * (number + count % 3))
                written[number].update(summaries)

    threads = [threading.Thread(target=write_on, args=[number]) for number in range(4)]
    with EventReader(project.client).begin() as reader:
        last = reader.last_event_id
    for thread in threads:
        thread.start()
    seen: list[str] = []
    while len(seen) < 480:
        with EventReader(project.client, last_event_id=last) as reader:
            for event in reader.events():
                seen.append(event["summary"])
                if len(seen) % 37 == 0 or len(seen) == 480:
                    break
            last = reader.last_event_id
    for thread in threads:
        thread.join()
    assert len(set(seen)) == len(seen)
    assert set(seen) == set().union(*written)


WRITE = """
INSERT INTO controlplane_event (account_id, type, project_id, operation_ids, actor_type,
    actor_name, address, at, summary, changes)
VALUES (%s, 'project.updated', %s, '{}', 'user', '', '', now(), %s, '{}')
"""


def account_of(project: Project, stack: Stack) -> int:
    with stack.database() as connection:
        row = connection.execute(
            "SELECT account_id FROM controlplane_project WHERE id = %s", [project.id]
        ).fetchone()
    assert row
    return int(row[0])


@pytest.mark.thorough
def test_a_revoked_key_ends_its_streams_and_no_others(project: Project) -> None:
    alice = project.client
    key = alice.post("/api_keys", {"key_name": "reader"})
    with (
        EventReader(Client(alice.api_url, key["key"])).begin() as revoked,
        EventReader(alice).begin() as other,
    ):
        alice.delete(f"/api_keys/{key['id']}")
        began = time.monotonic()
        assert [event["type"] for event in revoked.events()] in ([], ["api_key.revoked"])
        assert time.monotonic() - began < 10
        assert other.take(1)[0]["type"] == "api_key.revoked"


@pytest.mark.thorough
def test_streams_do_not_use_the_requests_share_and_are_limited(stack: Stack, alice: Client) -> None:
    streams = [EventReader(alice).begin() for _ in range(100)]
    try:
        assert alice.call("GET", "/projects").ok
        refused = EventReader(alice).response
        assert refusal(refused) == (
            429,
            "an account may have 100 streams at once; try again when others have ended",
        )
        assert refused.headers["Retry-After"] == "1"
        with stack.database() as connection:
            rows = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' OR query = "
                "'SELECT 1'"
            ).fetchone()
        assert rows
        assert processes_of(stack, "api")[-1].num_threads() < 10
    finally:
        for stream in streams:
            stream.response.close()
    wait_for(lambda: EventReader(alice).response.ok, "the ended streams to be released")


def test_long_work_delays_no_event(project: Project) -> None:
    """Streams wait for the oldest transaction that writes. An attempt at an operation is not
    one."""
    with EventReader(project.client).begin() as reader, project.locked():
        project.client.post(project.endpoint_path(rest="/suspend"))
        assert reader.take(1)[0]["type"] == "endpoint.suspend_requested"
        began = time.monotonic()
        rename(project, "meanwhile")
        assert names(reader.take(1)) == ["meanwhile"]
        assert time.monotonic() - began < 3


@pytest.mark.thorough
def test_another_process_of_the_api_has_the_same_events_and_stops_at_once(
    project: Project, stack: Stack
) -> None:
    key = project.client.post("/api_keys", {"key_name": "revoked"})
    project.client.delete(f"/api_keys/{key['id']}")
    with another_api(stack) as api:
        other = api.client(project.client.key)
        with EventReader(other, project.path + "/events").begin() as reader:
            rename(project, "first")
            assert names(reader.take(1)) == ["first"]
            assert api.client(key["key"]).call("GET", "/projects").status_code == 401
            began = time.monotonic()
            api.process.send_signal(signal.SIGTERM)
            assert list(reader.events()) == []
            api.process.wait(10)
            assert time.monotonic() - began < 5
            last = reader.last_event_id
    # The refusal was recorded as an event before the process ended.
    assert project.client.get("/events", type="api_key.refused")["events"]
    rename(project, "second")
    with EventReader(project.client, project.path + "/events", last_event_id=last) as reader:
        assert names(reader.take(1)) == ["second"]


def test_a_reader_that_does_not_read_is_disconnected() -> None:
    everything = EventFilter()
    reader = Reader(
        account_id=1, project_id=None, key_id=None, wanted=everything, has_left=lambda: False
    )
    for number in range(MAX_WAITING):
        reader.give(Position(1, number), b"")
    assert not reader.has_ended
    reader.give(Position(2, 0), b"")
    assert reader.has_ended
    assert list(reader.take(timeout=0)) == []


def test_a_stream_that_catches_up_is_never_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if none of the events is wanted, and while it waits for a place. A reader that breaks
    off goes on where it was."""
    reached = iter([NOTHING, Position(1, 1), Position(2, 2), Position(3, 3)])
    monkeypatch.setattr(event_streams, "missed", lambda *_, **__: ([], next(reached)))
    monkeypatch.setattr(event_streams, "position_now", lambda: Position(2, 2))
    monkeypatch.setattr(event_streams, "close_old_connections", lambda: None)
    monkeypatch.setattr(tail, "join", lambda reader: Position(3, 3))
    monkeypatch.setattr(event_streams, "HEARTBEAT_INTERVAL", 0.01)
    places = Places(1)
    monkeypatch.setattr(event_streams, "_readings", places)
    reader = Reader(
        account_id=1, project_id=None, key_id=None, wanted=EventFilter(), has_left=lambda: False
    )
    stream = EventStream(reader, Event.objects.none(), Resumption(NOTHING, 0), ExitStack())
    assert next(stream) == b"retry: 2000\n\n"
    # No id leads back to the beginning.
    assert next(stream) == b":\n\n"
    with places.hold(2, has_left=lambda: False):
        assert [next(stream), next(stream)] == [b":\n\n"] * 2
    assert not places._waiting
    assert [next(stream) for _ in range(3)] == [b"id: 1-1\n\n", b"id: 2-2\n\n", b"id: 3-3\n\n"]
    stream.close()


def of_transaction(event: Event, number: int) -> Event:
    """Assign the event to this transaction, because the test's own transaction is never
    committed."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE controlplane_event SET transaction = %s::text::xid8 WHERE id = %s",
            [str(number), event.id],
        )
    return Event.objects.get(id=event.id)


def next_of(rows: Rows, start: Resumption, *, until: Position) -> tuple[list[Event], Position]:
    """The next events of the project's account, and the position up to which they are read."""
    found, reached = missed(rows.account_id, Event.objects.all(), start, until=until, limit=9)
    return list(found), reached


class TestReadingOrder:
    """What the streams read, from rows whose transactions a test chooses."""

    @pytest.fixture
    def rows(self, account: Account, host: Host) -> Rows:
        return make_project(account, host)

    def test_the_order_is_that_of_transactions(self, rows: Rows) -> None:
        assert position_now() == NOTHING
        late, early = (of_transaction(write(rows), number) for number in (10, 9))
        assert read_tail(NOTHING, limit=10) == ([early, late], False)
        assert read_tail(NOTHING, limit=1) == ([early], True)
        assert read_tail(position_of(early), limit=10) == ([late], False)
        assert position_now() == position_of(late)

    def test_an_event_waits_for_open_transactions_that_may_precede_it(self, rows: Rows) -> None:
        settled, _ = of_transaction(write(rows), 5), write(rows)
        assert read_tail(NOTHING, limit=10) == ([settled], True)

    def test_a_reader_continues_after_its_event(self, rows: Rows) -> None:
        late, early = (of_transaction(write(rows), number) for number in (10, 9))
        end = position_of(late)
        assert next_of(rows, resumption(f"9-{early.id}"), until=end) == ([late], end)
        assert next_of(rows, resumption(str(late.id)), until=end) == ([], end)

    def test_a_filter_reads_a_bounded_number_of_events_at_once(
        self, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(events, "ROWS_READ", 2)
        written = [of_transaction(write(rows), number) for number in (5, 6, 7, 8, 9)]
        second, fourth, end = (position_of(written[n]) for n in (1, 3, 4))
        nobodys = EventFilter(actor_name="nobody").narrow(Event.objects.all())
        start = Resumption(NOTHING, 0)
        with CaptureQueriesContext(connection) as queries:
            for reached in (second, fourth, end, end):
                found = missed(rows.account_id, nobodys, start, until=end, limit=9)
                assert found == ([], reached)
                start = Resumption(reached, 0)
        assert len(queries) == 6
        assert all("LIMIT 2" in sent or "IN (" in sent for sent in (q["sql"] for q in queries))
        # An id that no event has any more may be larger than all.
        above = Resumption(NOTHING, 10**17)
        assert next_of(rows, above, until=end) == ([], second)
        # The wanted ones may be fewer than are read.
        everything = Event.objects.all()
        found = missed(rows.account_id, everything, Resumption(NOTHING, 0), until=end, limit=1)
        assert found == ([written[0]], position_of(written[0]))

    def test_only_the_accounts_events_are_read(self, rows: Rows, host: Host) -> None:
        other = make_project(Account.objects.create(name="another"), host)
        own, end = (of_transaction(write(one), 5) for one in (rows, other))
        until = position_of(end)
        assert next_of(rows, Resumption(NOTHING, 0), until=until) == ([own], until)

    def test_a_stream_whose_client_has_left_reads_nothing(self, rows: Rows) -> None:
        of_transaction(write(rows), 5)
        reader = Reader(
            account_id=rows.account_id,
            project_id=None,
            key_id=None,
            wanted=EventFilter(),
            has_left=lambda: True,
        )
        stream = EventStream(reader, Event.objects.all(), Resumption(NOTHING, 0), ExitStack())
        with CaptureQueriesContext(connection) as queries:
            assert list(stream) == [b"retry: 2000\n\n"]
        assert len(queries) == 0

    @pytest.mark.parametrize("transaction", [3, 5, 999_999])
    def test_if_its_event_was_removed_the_id_decides_what_is_later(
        self, rows: Rows, transaction: int
    ) -> None:
        first, second = (of_transaction(write(rows), 5) for _ in range(2))
        Event.objects.filter(id=first.id).delete()
        start = resumption(f"{transaction}-{first.id}")
        assert next_of(rows, start, until=position_now())[0] == [second]

    def test_after_a_restore(self, rows: Rows) -> None:
        """Transaction ids have begun anew, and a reader has received events that are lost now."""
        backed_up = of_transaction(write(rows), 900)
        lost_id = backed_up.id + 40
        renumber_events()
        new = of_transaction(write(rows), 5)
        assert new.id > ID_LEAP
        for known in (f"900-{backed_up.id}", f"950-{lost_id}"):
            start = resumption(known)
            assert next_of(rows, start, until=position_now())[0] == [new]
