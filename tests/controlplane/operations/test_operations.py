"""GET /projects/{project_id}/operations and one of them (specification, calls 5 and 6)."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote

import pytest

from tests.controlplane.fields import OPERATION, OPERATION_AT_TIMES, assert_fields
from tests.support.client import Client
from tests.support.project import Project, refusal
from tests.support.stack import Stack

# Recent, because operations older than the retention are deleted in the background.
NEWEST = (datetime.now(UTC) - timedelta(days=1)).replace(microsecond=670000)
SECOND = f"{NEWEST:%Y-%m-%dT%H:%M:%S}"
MANY = 1234


@pytest.fixture(scope="module")
def busy(stack: Stack) -> Iterator[Project]:
    """A project with a long history: an operation for each of `MANY` microseconds."""
    client = stack.client()
    project = Project.create(stack, client)
    with stack.database() as connection:
        connection.execute("DELETE FROM controlplane_operation WHERE project_id = %s", [project.id])
        connection.execute(
            "INSERT INTO controlplane_operation (id, project_id, branch_id, action, status, chain,"
            " resources, details, failures_count, created_at, updated_at)"
            " SELECT gen_random_uuid(), %s, %s, 'apply_config', 'finished', gen_random_uuid(),"
            " '{}', '{}', 0, moment, moment FROM (SELECT %s - i * interval '1 microsecond'"
            " AS moment FROM generate_series(0, %s) i)",
            [project.id, project.branch_id, NEWEST, MANY - 1],
        )
    yield project
    client.call("DELETE", project.path)


def pages(project: Project, **query: Any) -> Iterator[Any]:
    """Yield every page, following the cursor as a client does."""
    while True:
        page = project.client.get(project.path + "/operations", **query)
        if not page["operations"]:
            return
        yield page
        cursor = page["pagination"]["cursor"]
        assert cursor != query.get("cursor"), "the same page for ever"
        query["cursor"] = cursor


def test_it_works(fresh_project: Project) -> None:
    body = fresh_project.client.get(fresh_project.path + "/operations")

    assert set(body) == {"operations", "pagination"}
    assert set(body["pagination"]) == {"cursor"}
    start, create = body["operations"]
    for operation in (start, create):
        assert_fields(operation, OPERATION, OPERATION_AT_TIMES)
        assert operation["branch_id"] == fresh_project.branch_id
        assert operation["status"] == "finished"
        assert operation["failures_count"] == 0
        assert operation["total_duration_ms"] > 0
    assert (create["action"], "endpoint_id" in create) == ("create_timeline", False)
    assert (start["action"], start["endpoint_id"]) == ("start_compute", fresh_project.endpoint_id)
    assert start["id"] == fresh_project.created["operations"][1]["id"]


def test_get_returns_only_the_operation_and_its_steps(project: Project) -> None:
    listed = project.operations()[0]
    body = project.client.get(f"{project.path}/operations/{listed['id']}")
    assert body["operation"].pop("steps")
    assert body == {"operation": listed}


def test_without_a_limit_a_page_has_a_thousand(busy: Project) -> None:
    assert [len(page["operations"]) for page in pages(busy)] == [1000, MANY - 1000]


@pytest.mark.parametrize("limit", [1000, 617, 100])
def test_paging_loses_nothing_and_repeats_nothing(busy: Project, limit: int) -> None:
    found = [page["operations"] for page in pages(busy, limit=limit)]

    assert [len(page) for page in found[:-1]] == [limit] * (len(found) - 1)
    ids = [operation["id"] for page in found for operation in page]
    with busy.stack.database() as connection:
        rows = connection.execute(
            "SELECT id::text FROM controlplane_operation WHERE project_id = %s"
            " ORDER BY created_at DESC",
            [busy.id],
        ).fetchall()
    assert ids == [row[0] for row in rows]


def test_pages_of_one(busy: Project) -> None:
    several = busy.client.get(busy.path + "/operations", limit=12)["operations"]
    single = [page["operations"] for page, _ in zip(pages(busy, limit=1), range(12), strict=False)]
    assert single == [[operation] for operation in several]


def test_the_cursor_is_the_creation_time_in_microseconds(busy: Project) -> None:
    cursors = [
        page["pagination"]["cursor"]
        for page, _ in zip(pages(busy, limit=1), range(12), strict=False)
    ]
    # Trailing zeros are removed; the resource itself has its time in seconds.
    assert cursors[:2] == [f"{SECOND}.67Z", f"{SECOND}.669999Z"]
    assert cursors[10] == f"{SECOND}.66999Z"
    moments = [datetime.fromisoformat(cursor) for cursor in cursors]
    assert moments == [NEWEST - timedelta(microseconds=i) for i in range(12)]


def test_a_cursor_may_be_between_operations(busy: Project) -> None:
    path = busy.path + "/operations"
    page = busy.client.get(path, cursor=f"{SECOND}.7Z", limit=1)
    assert page["pagination"]["cursor"] == f"{SECOND}.67Z"
    there = NEWEST.astimezone(timezone(timedelta(hours=2)))
    page = busy.client.get(path, cursor=there.isoformat())
    assert len(page["operations"]) == 1000


def test_a_page_past_the_end_is_empty(busy: Project) -> None:
    body = busy.client.get(busy.path + "/operations", cursor="2020-01-01T00:00:00Z")
    assert body == {"operations": []}


def test_new_operations_do_not_shift_the_pages(fresh_project: Project) -> None:
    newest, oldest = fresh_project.operations()
    first = fresh_project.client.get(fresh_project.path + "/operations", limit=1)
    fresh_project.suspend()
    cursor = first["pagination"]["cursor"]
    second = fresh_project.client.get(fresh_project.path + "/operations", cursor=cursor, limit=1)
    assert (first["operations"], second["operations"]) == ([newest], [oldest])


@pytest.mark.thorough
@pytest.mark.parametrize("limit", ["0", "-1", "1001", "many", "1.5", "", "9" * 40, "٣x"])
def test_a_limit_out_of_range(standing: Project, limit: str) -> None:
    response = standing.client.call("GET", f"{standing.path}/operations?limit={quote(limit)}")
    status, message = refusal(response)
    assert status == 400
    assert re.match(r"invalid request: decode query: invalid: limit \(", message)


@pytest.mark.parametrize(
    "cursor",
    [
        "yesterday",
        "2026-01-02",
        "2026-01-02T03:04:05",
        "2026-13-02T03:04:05Z",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "99999999999999999999",
        "\ud7ff",
        "x" * 4000,
    ],
)
def test_a_broken_cursor(standing: Project, cursor: str) -> None:
    response = standing.client.call(
        "GET", standing.path + "/operations", params={"cursor": cursor, "limit": 1}
    )
    status, message = refusal(response)
    assert (status, message.startswith("invalid")) == (400, True)


def test_a_cursor_with_fractions_of_a_second_in_its_zone(standing: Project) -> None:
    cursor = "2022-01-01T00:00:00+00:00:01.5"
    body = standing.client.get(standing.path + "/operations", cursor=cursor)
    assert body == {"operations": []}


@pytest.mark.parametrize(
    "operation_id", ["00000000-0000-0000-0000-000000000000", "nonsense", "1", "%F0%9F"]
)
def test_an_unknown_operation(standing: Project, operation_id: str) -> None:
    response = standing.client.call("GET", f"{standing.path}/operations/{operation_id}")
    assert refusal(response) == (404, "operation not found")


def test_an_operation_of_another_project(standing: Project, alice: Client) -> None:
    operation = standing.operations()[0]
    own = standing.client.new_project(wait=False)["project"]["id"]
    path = f"/projects/{own}/operations/{operation['id']}"
    assert refusal(standing.client.call("GET", path)) == (404, "operation not found")


def test_an_unknown_project(alice: Client) -> None:
    response = alice.call("GET", "/projects/no-where-12345678/operations")
    assert refusal(response) == (404, "project not found")
