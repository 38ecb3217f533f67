"""Lists of events: pages and filters."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client as DjangoClient
from django.test.utils import CaptureQueriesContext

from controlplane.actors import Actor, ActorType
from controlplane.events.recording import happened, record, together
from controlplane.events.types import EventType
from controlplane.models import Account, Event, Host, Operation, Project
from tests.controlplane.rows import make_project

pytestmark = pytest.mark.slow

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def project(account: Account, host: Host) -> Project:
    return make_project(account, host)


def write(
    project: Project,
    kind: EventType = EventType.PROJECT_UPDATED,
    *,
    actor: Actor | None = None,
    minutes: float = 0,
    **about: Any,
) -> Event:
    event = happened(
        kind,
        summary="something",
        account_id=project.account_id,
        project=project,
        actor=actor,
        **about,
    )
    event.at = NOON + timedelta(minutes=minutes)
    record(event)
    return event


def listed(api: DjangoClient, project: Project | None = None, /, **query: str) -> list[int]:
    """Return the ids of the events."""
    path = f"/api/v2/projects/{project.id}/events" if project else "/api/v2/events"
    response = api.get(path, query)
    assert response.status_code == 200, response.content
    return [int(event["id"]) for event in response.json()["events"]]


def test_the_newest_come_first_page_by_page(api: DjangoClient, project: Project) -> None:
    # Two of them have the same time.
    written = [write(project, minutes=number // 2).id for number in range(7)]
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 3}
    while True:
        page = api.get("/api/v2/events", query).json()
        if not page["events"]:
            break
        seen += [event["id"] for event in page["events"]]
        query["cursor"] = page["pagination"]["cursor"]
    assert seen == [str(number) for number in reversed(written)]


def test_events_of_a_deleted_project_stay(api: DjangoClient, project: Project) -> None:
    event = write(project)
    Project.objects.filter(id=project.id).update(deleted_at=NOON)
    assert listed(api) == [event.id]
    assert api.get(f"/api/v2/projects/{project.id}/events").status_code == 404


def test_each_filter(api: DjangoClient, project: Project) -> None:
    operation = Operation.objects.get(project=project)
    user = Actor(ActorType.USER, name="deploy, the 2nd", api_key_id=1, address="127.0.0.1")
    start = write(project, EventType.ENDPOINT_ACTIVE, actor=user, endpoint="ep-a", branch="br-a")
    stop = write(project, EventType.ENDPOINT_IDLE, minutes=1, operations=[operation])
    key = write(project, EventType.API_KEY_CREATED, minutes=2, actor=Actor(ActorType.CLIENT))
    cases: list[tuple[dict[str, str], list[Event]]] = [
        ({}, [key, stop, start]),
        ({"type": "endpoint.active"}, [start]),
        ({"type": "endpoint.active, api_key.created"}, [key, start]),
        ({"type": "endpoint.*"}, [stop, start]),
        ({"actor": "user"}, [start]),
        ({"actor": "user,client"}, [key, start]),
        ({"actor": "user:deploy, the 2nd"}, [start]),
        ({"actor": "user:other"}, []),
        ({"branch_id": "br-a"}, [start]),
        ({"endpoint_id": "ep-b,ep-a"}, [start]),
        ({"operation_id": str(operation.id)}, [stop]),
        ({"operation_id": str(uuid.uuid4())}, []),
        ({"since": "2026-01-31T12:01:00Z"}, [key, stop]),
        ({"until": "2026-01-31T13:01:00+01:00"}, [start]),
        ({"type": "endpoint.*", "actor": "platform", "limit": "1"}, [stop]),
    ]
    for query, expected in cases:
        assert listed(api, None, **query) == [event.id for event in expected], query
        assert listed(api, project, **query) == [event.id for event in expected], query


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"type": "endpoint.awake"}, 'type: unknown type "endpoint.awake"; use one of: project.cr'),
        ({"type": "nest.*"}, 'type: unknown type "nest.*"; use one of: '),
        ({"type": "end*"}, 'type: unknown type "end*"; use one of: '),
        ({"type": "webhook.test"}, 'type: unknown type "webhook.test"; use one of: '),
        ({"actor": "alice"}, 'actor: unknown type "alice"; use one of: user, client, idleness, '),
        ({"actor": "user,client:bob"}, "actor: a name needs exactly one type, as in user:deploy"),
        ({"operation_id": "7"}, 'operation_id: "7" is not the id of an operation'),
        (
            {"since": "2026-01-31T12:00:00"},
            "invalid request: decode query: invalid: since (must be a time such as 2027-01-31T",
        ),
        ({"until": "noon"}, "invalid request: decode query: invalid: until ("),
        ({"cursor": "x"}, "invalid cursor: not of an earlier page"),
        ({"cursor": "9" * 40 + "-1"}, "invalid cursor: not of an earlier page"),
        ({"limit": "1001"}, "invalid request: decode query: invalid: limit ("),
        ({"limit": "0"}, "invalid request: decode query: invalid: limit ("),
    ],
)
def test_invalid_filters(api: DjangoClient, query: dict[str, str], words: str) -> None:
    response = api.get("/api/v2/events", query)
    assert response.status_code == 400
    assert response.json()["message"].startswith(words)


@pytest.mark.parametrize("field", ["since", "until"])
def test_a_time_may_have_any_zone(api: DjangoClient, field: str) -> None:
    """Also one that Postgres does not know."""
    assert listed(api, None, **{field: "2026-01-31T12:00:00+20:00"}) == []


FILTERS = [
    {},
    {"type": "endpoint.idle"},
    {"actor": "client"},
    {"branch_id": "br-rare"},
    {"endpoint_id": "ep-rare"},
    {"operation_id": "00000000-0000-4000-8000-000000000001"},
    {"until": "2026-01-31T12:00:05Z"},
    {"type": "endpoint.*", "since": "2026-01-31T12:00:00Z"},
]
MANY = """
INSERT INTO controlplane_event (account_id, type, project_id, branch_id, endpoint_id,
    operation_ids, actor_type, actor_name, address, at, summary, changes)
SELECT %(account)s, CASE WHEN n %% 5000 = 0 THEN 'endpoint.idle' ELSE 'project.updated' END,
    %(project)s, CASE WHEN n %% 5000 = 1 THEN 'br-rare' ELSE 'br-' || n %% 50 END,
    CASE WHEN n %% 5000 = 2 THEN 'ep-rare' END, ARRAY[md5(n::text)::uuid],
    CASE WHEN n %% 5000 = 3 THEN 'client' ELSE 'user' END, 'tests', '',
    timestamptz '2026-01-31 12:00:00Z' + n * interval '1 second', 'something', '{}'
FROM generate_series(1, 20000) n
"""


@pytest.mark.thorough
@pytest.mark.parametrize("query", FILTERS)
def test_no_filter_reads_more_than_it_returns(
    api: DjangoClient, account: Account, project: Project, query: dict[str, str]
) -> None:
    """According to the query plan: no scan of the table, and no more rows discarded than
    returned."""
    with connection.cursor() as cursor:
        cursor.execute(MANY, {"account": account.id, "project": project.id})
        cursor.execute("ANALYZE controlplane_event")
    for path in ("/api/v2/events", f"/api/v2/projects/{project.id}/events"):
        with CaptureQueriesContext(connection) as captured:
            assert api.get(path, query).status_code == 200
        sql = captured[-1]["sql"]
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}")
            plan = cursor.fetchone()[0][0]["Plan"]
        assert "Seq Scan" not in str(plan), plan
        assert removed_rows(plan) <= 200, plan


def removed_rows(plan: dict[str, Any]) -> int:
    own = sum(int(plan.get(f"Rows Removed by {why}", 0)) for why in ("Filter", "Index Recheck"))
    return own + sum(removed_rows(part) for part in plan.get("Plans", ()))


def test_events_of_one_transaction_are_one_statement(project: Project) -> None:
    with CaptureQueriesContext(connection) as captured, together():
        write(project)
        with together():
            write(project)
        assert Event.objects.count() == 0
    assert Event.objects.count() == 2
    assert [query["sql"][:6] for query in captured] == ["SELECT", "INSERT"]


def test_a_failed_transaction_leaves_no_event(project: Project) -> None:
    def fail() -> None:
        with together():
            write(project)
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert Event.objects.count() == 0
