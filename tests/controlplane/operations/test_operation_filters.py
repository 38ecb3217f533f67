"""Lists of operations: filters, their pages, and invalid values."""

import itertools
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.support.client import Client
from tests.support.project import Project, refusal
from tests.support.stack import Stack

# Recent, because operations older than the retention are deleted in the background.
FIRST = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
# Rows of every kind with mixed times, on two endpoints of two branches.
ROWS = """
INSERT INTO controlplane_operation (id, project_id, branch_id, endpoint_id, action, status, chain,
    initiator_type, resources, details, failures_count, created_at, updated_at)
SELECT gen_random_uuid(), %(project)s,
    (%(branches)s::text[])[1 + n %% 2], (%(endpoints)s::text[])[1 + n %% 2],
    (ARRAY['start_compute', 'suspend_compute', 'apply_config'])[1 + n %% 3],
    (ARRAY['finished', 'finished', 'finished', 'failed', 'cancelled'])[1 + n %% 5],
    (ARRAY[%(one)s, %(other)s]::uuid[])[1 + (n %% 7 > 3)::int],
    (ARRAY['user', 'client', 'idleness', 'user'])[1 + n %% 4],
    '{}', '{}', 0, at, at
FROM (
    SELECT n, %(first)s + n * interval '1 second' AS at
    FROM generate_series(0, 209) n
) times
"""


@pytest.fixture(scope="module")
def full(stack: Stack) -> Iterator[tuple[Project, dict[str, Any]]]:
    client = stack.client()
    project = Project.create(stack, client)
    made = project.new_branch(endpoint=True)
    values = {
        "project": project.id,
        "first": FIRST,
        "branches": [project.branch_id, made["branch"]["id"]],
        "endpoints": [project.endpoint_id, made["endpoints"][0]["id"]],
        "one": uuid.uuid4(),
        "other": uuid.uuid4(),
    }
    with stack.database() as connection:
        connection.execute("DELETE FROM controlplane_operation WHERE project_id = %s", [project.id])
        connection.execute(ROWS, values)
    yield project, values
    client.call("DELETE", project.path)


def listed(project: Project, **query: Any) -> list[dict[str, Any]]:
    """Return all pages, each of seven operations."""
    found: list[dict[str, Any]] = []
    while True:
        page = project.client.get(project.path + "/operations", limit=7, **query)
        found += page["operations"]
        if not page["operations"]:
            return found
        query["cursor"] = page["pagination"]["cursor"]


FILTERS: list[dict[str, list[str]]] = [
    {"action": ["start_compute"]},
    {"action": ["start_compute", "apply_config"]},
    {"status": ["failed"]},
    {"status": ["failed", "cancelled", "running"]},
    {"initiator": ["client", "check"]},
    {"endpoint_id": ["endpoints"]},
    {"branch_id": ["branches"]},
    {"chain_id": ["one"]},
    {"action": ["suspend_compute"], "status": ["failed"], "initiator": ["user"]},
    {"endpoint_id": ["endpoints"], "status": ["cancelled", "failed"]},
    {"branch_id": ["branches"], "action": ["apply_config"]},
    {"branch_id": ["branches"], "endpoint_id": ["endpoints"], "initiator": ["user"]},
    {"chain_id": ["one"], "status": ["failed"]},
    {"status": ["scheduling"]},
]


@pytest.mark.thorough
@pytest.mark.parametrize("filters", FILTERS, ids=lambda filters: "-".join(filters))
def test_a_filter_finds_exactly_the_matching_operations(
    full: tuple[Project, dict[str, Any]], filters: dict[str, list[str]]
) -> None:
    project, values = full

    def allowed(name: str) -> list[str]:
        given = filters[name]
        if given[0] in values:
            found = values[given[0]]
            return [str(found[1])] if isinstance(found, list) else [str(found)]
        return given

    def value(operation: dict[str, Any], name: str) -> str:
        return str(operation["initiator"]["type"] if name == "initiator" else operation[name])

    every = listed(project)
    assert len(every) == 210
    expected = [one for one in every if all(value(one, name) in allowed(name) for name in filters)]
    assert expected or filters == {"status": ["scheduling"]}
    assert listed(project, **{name: ",".join(allowed(name)) for name in filters}) == expected


def test_times_are_inclusive_at_the_start_and_exclusive_at_the_end(
    full: tuple[Project, dict[str, Any]],
) -> None:
    project, _ = full
    until = (FIRST + timedelta(seconds=20)).astimezone(timezone(timedelta(hours=2)))
    times = {"since": f"{FIRST:%Y-%m-%d}T00:00:10Z", "until": until.isoformat()}
    inside = listed(project, **times)
    assert [one["created_at"][-3:-1] for one in inside] == [str(n) for n in range(19, 9, -1)]
    failed = listed(project, status="failed", **times)
    assert failed == [one for one in inside if one["status"] == "failed"]
    assert len(failed) == 2


@pytest.mark.thorough
def test_many_values_and_empty_values(full: tuple[Project, dict[str, Any]]) -> None:
    project, values = full
    both = listed(project, endpoint_id=",".join(values["endpoints"]), status=" ,failed,failed,")
    assert both == listed(project, status="failed")
    assert listed(project, status="") == listed(project)
    for one, another in itertools.pairwise(both):
        assert one["created_at"] > another["created_at"]


@pytest.mark.thorough
def test_another_projects_endpoint_matches_nothing(
    full: tuple[Project, dict[str, Any]], standing: Project
) -> None:
    _, values = full
    for name, value in (("endpoint_id", values["endpoints"][0]), ("chain_id", values["one"])):
        page = standing.client.get(standing.path + "/operations", **{name: value})
        assert page == {"operations": []}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("action=start", 'action: unknown value "start"; use one of: create_timeline, '),
        ("status=failed,done", 'status: unknown value "done"; use one of: scheduling, running, '),
        ("initiator=me", 'initiator: unknown value "me"; use one of: user, client, idleness, '),
        ("endpoint_id=br-quiet-heron-123456", "endpoint_id: invalid id: "),
        ("endpoint_id=ep-%27;", "endpoint_id: invalid id: "),
        ("branch_id=main", "branch_id: invalid id: "),
        ("chain_id=1", "chain_id: invalid id: "),
        ("chain_id=" + ",".join(str(uuid.uuid4()) for _ in range(21)), "chain_id: at most 20"),
        ("since=yesterday", "invalid since: not a timestamp"),
        ("until=2026-01-02T03:04:05", "invalid until: the time zone is missing"),
        ("until=0001-01-01T00:00:00%2B14:00", "invalid until: out of range"),
        ("status=%FF", "status: unknown value "),
        ("status=%0A", "invalid request: decode query: invalid: status ("),
    ],
)
def test_an_invalid_value(standing: Project, query: str, words: str) -> None:
    response = standing.client.call("GET", f"{standing.path}/operations?{query}")
    status, message = refusal(response)
    assert (status, message.startswith(words)) == (400, True), message


def test_another_accounts_project_is_not_found(standing: Project, alice: Client) -> None:
    response = alice.call("GET", standing.path + "/operations?status=failed")
    assert refusal(response) == (404, "project not found")
