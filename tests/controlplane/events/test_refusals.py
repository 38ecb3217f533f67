"""Refused keys and wrong passwords are aggregated: an attack fills neither memory nor the table."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import OperationalError

from controlplane.events import refusals as module
from controlplane.events.refusals import MAX_ENTRIES, MAX_PER_DAY, MAX_SEPARATE, Refusal, Refusals
from controlplane.events.types import EventType
from controlplane.models import Account, Endpoint, Event, Host
from tests.controlplane.rows import make_project
from tests.support.client import Client
from tests.support.project import Project
from tests.support.stack import Stack
from tests.support.waiting import wait_for

KEY, CONNECTION = EventType.API_KEY_REFUSED, EventType.CONNECTION_REFUSED


@pytest.fixture
def refusals() -> Refusals:
    return Refusals()


def written() -> list[Event]:
    return list(Event.objects.order_by("id"))


def test_it_works(refusals: Refusals, account: Account, host: Host) -> None:
    make_project(account, host)
    endpoint = Endpoint.objects.get()
    for _ in range(3):
        refusals.note(Refusal(CONNECTION, account.id, "bob", "10.0.0.1", endpoint.id))
    refusals.note(Refusal(KEY, address="10.0.0.2"))
    refusals.write()
    password, key = written()
    assert password.account_id == account.id
    assert (password.endpoint_id, password.branch_id) == (endpoint.id, endpoint.branch_id)
    assert (password.actor_type, password.actor_name) == ("client", "bob")
    assert password.changes["count"] == {"from": 0, "to": 3}
    assert password.summary.startswith(
        '3 connections were refused from 10.0.0.1: with a wrong password of the role "bob", since'
    )
    assert key.account_id is None
    assert key.summary == "A request was refused from 10.0.0.2: with an unknown key"
    refusals.write()
    assert len(written()) == 2


def test_many_refusals_are_recorded_together(refusals: Refusals, account: Account) -> None:
    for number in range(10 * MAX_SEPARATE):
        refusals.note(
            Refusal(CONNECTION, account.id, "bob", f"10.0.{number // 256}.{number % 256}")
        )
    refusals.write()
    events = written()
    assert len(events) == MAX_SEPARATE + 1
    assert sum(event.changes["count"]["to"] for event in events) == 10 * MAX_SEPARATE
    assert events[-1].summary.startswith("450 connections were refused: with wrong passwords or ")


def test_memory_is_limited_however_many_sources_there_are(refusals: Refusals) -> None:
    for number in range(5 * MAX_ENTRIES):
        refusals.note(Refusal(KEY, number % 1500, str(number), "x" * 10_000))
    assert len(refusals._tallies) <= MAX_ENTRIES + 1
    assert sum(tally.count for tally in refusals._tallies.values()) == 5 * MAX_ENTRIES


def test_refusals_per_day_are_limited_for_each_account(
    refusals: Refusals, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = Account.objects.create(name="bob")
    for round_of_ten_seconds in range(MAX_PER_DAY // MAX_SEPARATE + 5):
        for number in range(MAX_SEPARATE):
            name = f"{round_of_ten_seconds} {number}"
            refusals.note(Refusal(KEY, account.id, name, "10.0.0.1"))
        refusals.write()
    assert Event.objects.filter(account=account).count() == MAX_PER_DAY
    refusals.note(Refusal(KEY, bob.id, "ci", "10.0.0.1"))
    refusals.write()
    assert Event.objects.filter(account=bob).count() == 1
    # Those beyond the limit are recorded together an hour later, or when the process stops.
    monkeypatch.setattr(module, "LATE_AFTER", timedelta(0))
    refusals.write()
    assert Event.objects.filter(account=account).count() == MAX_PER_DAY + 1
    counts = [event.changes["count"]["to"] for event in Event.objects.filter(account=account)]
    assert sum(counts) == MAX_PER_DAY + 5 * MAX_SEPARATE
    monkeypatch.undo()
    refusals.note(Refusal(KEY, account.id, "ci", "10.0.0.1"))
    refusals.write()
    refusals.write(is_last=True)
    assert Event.objects.filter(account=account).count() == MAX_PER_DAY + 2


def test_refusals_that_cannot_be_written_are_kept(
    refusals: Refusals, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*events: Any) -> None:
        raise OperationalError

    refusals.note(Refusal(KEY, account.id, "ci", "10.0.0.1"))
    monkeypatch.setattr(module, "record", fail)
    with pytest.raises(OperationalError):
        refusals.write()
    monkeypatch.undo()
    refusals.note(Refusal(KEY, account.id, "ci", "10.0.0.1"))
    refusals.write()
    (event,) = written()
    assert event.changes["count"]["to"] == 2


def refused(client: Client, kind: str, **query: Any) -> list[Any]:
    found: list[Any] = client.get("/events", type=kind, **query)["events"]
    return found


def test_the_running_service_records_refusals(project: Project, stack: Stack) -> None:
    alice = project.client
    key = alice.post("/api_keys", {"key_name": "ci"})
    alice.delete(f"/api_keys/{key['id']}")
    for text in (key["key"], key["key"], "perch_unknown"):
        assert Client(stack.api_url, text).call("GET", "/projects").status_code == 401
    uri = project.created["connection_uris"][0]["connection_uri"]
    for role in ("neondb_owner", "neondb_owner", "hunter2"):
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            # By default, libpq retries without TLS what was refused with TLS.
            psycopg.connect(
                uri, hostaddr="127.0.0.1", user=role, password="wrong", sslmode="require"
            )
    # Each process of the proxy and of the API records its own.
    wait_for(lambda: count(refused(alice, "connection.refused")) == 3, "the connections")
    wait_for(lambda: count(refused(alice, "api_key.refused")) == 2, "the keys")
    of_keys = refused(alice, "api_key.refused")
    for event in of_keys:
        assert event["actor"] == {
            "type": "user",
            "name": "ci",
            "api_key_id": key["id"],
            "address": "127.0.0.1",
        }
    connections = refused(alice, "connection.refused", endpoint_id=project.endpoint_id)
    assert count(connections) == 3
    assert {event["actor"]["name"] for event in connections} == {"neondb_owner", ""}
    assert {event["branch_id"] for event in connections} == {project.branch_id}
    everything = str([*connections, *of_keys])
    for secret in ("hunter2", "wrong-password", key["key"]):
        assert secret not in everything
    with stack.database() as connection:
        nobodys = connection.execute(
            "SELECT summary FROM controlplane_event WHERE account_id IS NULL"
        ).fetchall()
    assert any("with an unknown key" in summary for (summary,) in nobodys)
    assert not any("perch_unknown" in summary for (summary,) in nobodys)


def count(events: list[Any]) -> int:
    return sum(event["changes"]["count"]["to"] for event in events)
