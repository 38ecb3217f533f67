"""The metrics of endpoints: sampled while they run, over a time and at present."""

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
import requests
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.support.client import Client
from tests.support.project import Project, refusal
from tests.support.waiting import wait_for

# A sample is due with the first look of the next minute; looks are ten seconds apart.
NEXT_SAMPLE = 90.0
ACCEPTED_BY_PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


def metrics(project: Project, **query: Any) -> Any:
    return project.client.get(project.endpoint_path(rest="/metrics"), **query)["metrics"]


def current(project: Project) -> Any:
    (one,) = project.client.get(project.path + "/metrics")["endpoints"]
    return one


def test_it_works(fresh_project: Project) -> None:
    project = fresh_project
    # It is looked at three times as often as this.
    project.change(suspend_timeout_seconds=9)
    wait_for(lambda: "rows_written" in current(project), "the first sample")
    first = current(project)
    project.sql("CREATE TABLE birds AS SELECT generate_series(1, 1000) AS n")
    project.sql("DELETE FROM birds WHERE n <= 10")
    # Waking it again is another start, whose first moments are sampled at once.
    project.suspend()
    project.start()
    wait_for(lambda: current(project)["rows_written"] > first["rows_written"], "a sample of it")
    found = metrics(project)
    assert found["endpoint_id"] == project.endpoint_id
    assert found["step"] == 60
    total = {
        name: sum(point[name] for point in found["points"])
        for name in ("rows_read", "rows_written", "log_bytes", "cpu_seconds", "wakes")
    }
    # Creating the table writes some rows of the catalog.
    assert 1010 < total["rows_written"] < 1060
    assert total["rows_read"] >= 1000
    assert total["log_bytes"] > 50_000
    assert total["cpu_seconds"] > 0
    assert total["wakes"] == 2
    newest = found["points"][-1]
    assert newest["memory_bytes"] > 1 << 20
    present = current(project)
    assert present["active"]
    assert present["wakes"] == 2
    assert present["rows_written"] - first["rows_written"] == total["rows_written"]


@pytest.mark.thorough
def test_connections_are_counted_by_their_state(fresh_project: Project) -> None:
    project = fresh_project
    wait_for(lambda: metrics(project)["points"], "the first sample")
    uri = project.client.get(
        project.path + "/connection_uri", database_name="neondb", role_name="neondb_owner"
    )["uri"]
    project.suspend()
    # The first look comes right after the wake, while these are there.
    with (
        psycopg.connect(uri, hostaddr="127.0.0.1") as idle,
        psycopg.connect(uri, hostaddr="127.0.0.1") as open_,
    ):
        idle.autocommit = True
        idle.execute("SELECT 1")
        open_.execute("SELECT 1")
        wait_for(
            lambda: current(project).get("connections_idle_in_transaction") == 1,
            "a sample of the connections",
            timeout=NEXT_SAMPLE,
        )
        assert current(project)["connections_idle"] == 1
        assert current(project)["active_queries"] == 0
    project.suspend()
    now = current(project)
    assert not now["active"]
    assert now["connections_idle"] == 0
    assert now["memory_bytes"] == 0


@pytest.mark.thorough
def test_samples_keep_no_compute_awake(fresh_project: Project) -> None:
    project = fresh_project
    project.change(suspend_timeout_seconds=5)
    project.start()
    wait_for(lambda: project.endpoint()["current_state"] == "idle", "the suspend", timeout=60)
    assert current(project)["sampled_at"] <= project.endpoint()["suspended_at"]


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ({"from": "2026-11-23T12:00:00"}, 400, "must be a time"),
        ({"to": "yesterday"}, 400, "must be a time"),
        ({"step": 90}, 400, "multiple"),
        ({"step": 0}, 400, "greater"),
        ({"step": 172_800}, 400, "less"),
        ({"from": "-15 days"}, 422, "14 days"),
        ({"to": "0001-01-01T00:00:00Z"}, 422, "14 days"),
        ({"from": "-1 days", "to": "0001-01-01T00:00:00Z"}, 400, "to is before from"),
        ({"from": "0001-01-01T00:00:00Z", "to": "9999-12-31T23:59:59Z"}, 422, "14 days"),
        ({"from": "+1 day"}, 422, "in the future"),
        ({"from": "-1 days", "to": "-2 days"}, 400, "to is before from"),
        ({"from": "-13 days", "step": 300}, 422, "3744 points"),
    ],
)
def test_refusals(standing: Project, query: dict[str, Any], status: int, words: str) -> None:
    query = {name: moment(value) for name, value in query.items()}
    answer = standing.client.call("GET", standing.endpoint_path(rest="/metrics"), params=query)
    assert refusal(answer)[0] == status
    assert words in answer.json()["message"]
    (error,) = answer.json()["errors"]
    assert error["field"] in query


def test_times_and_steps(standing: Project) -> None:
    found = metrics(standing, **{"from": moment("-7 days")})
    assert found["step"] == 3600
    assert found["from"].endswith(":00:00Z")
    # Further back than samples are kept as they were taken, a step is five minutes at least.
    assert metrics(standing, **{"from": moment("-6 hours"), "step": 60})["step"] == 300
    since = datetime.now(UTC) - timedelta(minutes=30)
    found = metrics(standing, **{"from": since.isoformat(), "to": moment("+9 days")})
    assert found["step"] == 60
    assert datetime.fromisoformat(found["from"]) == since.replace(second=0, microsecond=0)
    assert datetime.fromisoformat(found["to"]) - datetime.now(UTC) <= timedelta(minutes=1)


def test_present_metrics(fresh_project: Project) -> None:
    """Prometheus reads them with a read-only key that is limited to the project."""
    project = fresh_project
    wait_for(lambda: "sampled_at" in current(project), "a sample")
    body = {"key_name": "prometheus", "project_id": project.id, "read_only": True}
    key = project.client.post("/api_keys", body)["key"]
    reader = Client(project.client.api_url, key)
    answer = reader.call(
        "GET", project.path + "/metrics", headers={"Accept": ACCEPTED_BY_PROMETHEUS}
    )
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    labels = {"endpoint": project.endpoint_id, "branch": project.branch_id}
    samples = values(answer)
    assert samples["perch_endpoint_active", None] == 1
    assert samples["perch_endpoint_wakes_total", None] == 1
    assert samples["perch_endpoint_memory_bytes", None] > 1 << 20
    assert {state for name, state in samples if name == "perch_endpoint_connections"} == {
        "active",
        "idle",
        "idle_in_transaction",
    }
    for sample in samples_in(answer):
        assert labels.items() <= sample.labels.items(), sample
    asked = reader.call("GET", project.path + "/metrics", params={"format": "openmetrics"})
    assert asked.headers["Content-Type"] == answer.headers["Content-Type"]
    as_json = reader.call(
        "GET",
        project.path + "/metrics",
        params={"format": "json"},
        headers={"Accept": ACCEPTED_BY_PROMETHEUS},
    )
    assert as_json.json()["endpoints"][0]["endpoint_id"] == project.endpoint_id


def samples_in(answer: requests.Response) -> list[Any]:
    families = text_string_to_metric_families(answer.text)  # type: ignore[no-untyped-call]
    return [sample for family in families for sample in family.samples]


def values(answer: requests.Response) -> dict[tuple[str, str | None], float]:
    return {
        (sample.name, sample.labels.get("state")): sample.value for sample in samples_in(answer)
    }


def moment(value: Any) -> Any:
    """A time so long from now, such as "-2 days"; anything else unchanged."""
    if not isinstance(value, str) or value[0] not in "+-":
        return value
    count, unit = value.split()
    kind = "days" if unit.startswith("day") else "hours"
    return (datetime.now(UTC) + timedelta(**{kind: int(count)})).isoformat()
