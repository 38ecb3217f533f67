"""The page that monitors an endpoint: charts, tables, and servers without metrics."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from console.api.errors import NonsenseAnswer
from console.api.resources.endpoints import Metrics
from console.endpoints.charts import CHARTS, axis, count, draw, round_up
from console.operations.timescale import Scale
from console.templatetags.console_tags import NOTHING
from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.pages import Page

BEGIN = datetime(2026, 1, 31, 12, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return BEGIN + timedelta(minutes=minutes)


def point(minutes: int, **values: float) -> dict[str, Any]:
    return {"at": at(minutes).isoformat(), "samples": 1, **values}


def metrics(*points: dict[str, Any], step: int = 60) -> Metrics:
    data = {
        "from": at(0).isoformat(),
        "to": at(60).isoformat(),
        "step": step,
        "points": list(points),
    }
    return Metrics.read(data)


def drawn(name: str, *points: dict[str, Any]) -> Any:
    charts = draw(metrics(*points), Scale(at(0), at(60)))
    return next(one for one in charts if one.chart.name == name)


def test_it_works(carol: Person, still_shop: Shop) -> None:
    """Real metrics: whether the first sample is taken yet or not."""
    page = Page(carol.get(f"{still_shop.endpoint_url}/monitoring"))
    assert still_shop.endpoint_id in page.text
    assert "Database size" in page.text or "No samples in the last hour" in page.text
    assert 'id="range-7d"' in page.html
    assert page.html.count("<h1") == 1
    overview = Page(carol.get(still_shop.endpoint_url))
    assert f'href="{still_shop.endpoint_url}/monitoring"' in overview.html


def test_lines_have_a_gap_where_the_endpoint_did_not_run() -> None:
    chart = drawn(
        "connections",
        point(0, connections_active=4, connections_idle=1),
        point(1, connections_active=2, connections_idle=1),
        point(30, connections_active=1),
    )
    active, idle, _ = chart.lines
    assert active.line == "M0 0H24V50H48M720 75H744"
    assert idle.line == "M0 75H24V75H48M720 100H744"
    assert active.area.startswith("M0 100V0H24V100z")
    assert [mark.label for mark in chart.grid] == ["4", "2", "0"]
    assert chart.summary == "At most 4 active, 1 idle, 0 idle in transaction"


def test_each_chart_has_a_summary() -> None:
    points = [
        point(0, cpu_seconds=30, cache_hits=98, cache_misses=2, rows_read=600, wakes=1),
        point(1, cpu_seconds=6, memory_bytes=5e8, database_bytes=31e6, rows_written=12_345),
    ]
    found = {one.chart.name: one.summary for one in draw(metrics(*points), Scale(at(0), at(60)))}
    assert found["cpu"] == "On average 0.3 vCPU, at most 0.5"
    assert found["memory"].replace("\xa0", " ") == "At most 500 MB"
    assert found["cache"].replace("\xa0", " ") == "98 % of all blocks"
    assert found["size"].replace("\xa0", " ") == "Latest 31 MB"
    assert found["rows"].replace("\xa0", " ") == "600 read, 12.3 k written in all"
    assert found["deadlocks"] == "None"
    assert found["wakes"] == "1 in all"


def test_a_size_that_was_not_measured_is_not_shown_as_zero() -> None:
    chart = drawn("size", point(0), point(1, database_bytes=31e6), point(2))
    assert chart.lines[0].line == "M24 22H48"
    assert [values for _, values in chart.rows] == [[NOTHING], ["31\xa0MB"], [NOTHING]]
    assert chart.summary == "Latest 31\xa0MB"
    assert drawn("size", point(0)).summary == "Not measured yet"


def test_each_chart_has_its_values_as_a_table() -> None:
    rows = drawn("rows", point(0, rows_read=60), point(1, rows_read=600, rows_written=6)).rows
    assert rows == [(at(1), ["10", "0.1"]), (at(0), ["1", "0"])]


@pytest.mark.parametrize(
    ("value", "top"), [(0.01, 0.01), (0.011, 0.02), (3, 4), (99, 100), (101, 200), (1, 1)]
)
def test_an_axis_ends_with_a_round_number(value: float, top: float) -> None:
    assert round_up(value) == pytest.approx(top)


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0"), (0.0001, "< 0.001"), (0.25, "0.25"), (99.7, "100"), (9999, "9,999"),
     (12_500, "12.5\xa0k"), (3.2e6, "3.2\xa0M"), (8.4e10, "84\xa0G")],
)  # fmt: skip
def test_numbers_are_short(value: float, words: str) -> None:
    assert count(value) == words


def test_the_band_shows_when_the_endpoint_was_active() -> None:
    found = axis(Scale(at(0), at(60)), at(15), [(at(30), at(45)), (at(50), at(50))])
    assert found.known == "M360 0h1080v10H360z"
    assert found.active == "M720 0h360v10H720zM1200 0h3v10H1200z"
    assert found.active_ms == 15 * 60_000
    assert axis(Scale(at(0), at(60)), at(60), ()).active_ms is None


def test_what_is_still_to_come_does_not_count_as_active() -> None:
    # The scale ends at the next minute, and the endpoint has existed for 10 seconds.
    found = axis(Scale(at(0), at(60)), at(15), [(at(15), at(60))], now=at(25))
    assert found.active_ms == round((at(25) - at(15)).total_seconds() * 1000)


def test_enormous_and_negative_values_are_bounded() -> None:
    charts = draw(
        metrics(point(0, memory_bytes=2**62, connections_active=-5, cpu_seconds=1e18)),
        Scale(at(0), at(60)),
    )
    assert len(charts) == len(CHARTS)


@pytest.mark.parametrize("wrong", [{"step": 0}, {"to": "2020-01-01T00:00:00Z"}, {"from": "x"}])
def test_an_answer_without_a_range_is_refused(wrong: dict[str, Any]) -> None:
    whole = {"from": at(0).isoformat(), "to": at(60).isoformat(), "step": 60, "points": []}
    with pytest.raises(NonsenseAnswer):
        Metrics.read({**whole, **wrong})


def _answer(misbehaving: Misbehaving, *points: dict[str, Any]) -> None:
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    for number, one in enumerate(points):
        one["at"] = (now - timedelta(minutes=len(points) - number)).isoformat()
    misbehaving.body = json.dumps(
        {
            "project": {"id": "p", "name": "shop"},
            "endpoint": {"id": "e", "current_state": "active"},
            "branches": [],
            "events": [],
            "metrics": {
                "from": (now - timedelta(hours=1)).isoformat(),
                "to": (now + timedelta(minutes=1)).isoformat(),
                "step": 60,
                "points": points,
            },
        }
    ).encode()


def test_the_chosen_time_is_requested_and_kept(dave: Person, misbehaving: Misbehaving) -> None:
    _answer(misbehaving, {"samples": 1, "connections_idle": 3})
    for name, step in (("1h", 60), ("6h", 300), ("24h", 900), ("7d", 7200), ("nonsense", 60)):
        misbehaving.asked.clear()
        page = Page(dave.get(f"/projects/p/endpoints/e/monitoring?range={name}"))
        (asked,) = [one for one in misbehaving.asked if "/metrics" in one]
        assert f"step={step}" in asked
        chosen = name if name != "nonsense" else "1h"
        assert f'id="range-{chosen}" href' in page.html
        assert f"/monitoring/live?range={chosen}" in page.html
        assert re.search(rf'id="range-{chosen}"[^>]* aria-current="page"', page.html)
    assert page.polls
    assert any(row.endswith("| 0 | 3 | 0") for row in page.rows())


def test_an_endpoint_that_did_not_run_has_no_charts(dave: Person, misbehaving: Misbehaving) -> None:
    _answer(misbehaving)
    page = Page(dave.get("/projects/p/endpoints/e/monitoring"))
    assert "No samples in the last hour" in page.text
    assert "Database size" not in page.text
    assert page.polls


def test_a_server_without_metrics_says_so(dave: Person, misbehaving: Misbehaving) -> None:
    _answer(misbehaving)
    misbehaving.apart = {"/metrics": (404, b'{"message": "not found"}')}
    page = Page(dave.get("/projects/p/endpoints/e/monitoring"))
    assert "The server does not report the metrics of endpoints." in page.text
    assert not page.polls
    # Dave's server is not Perch, so the endpoint's page offers no such page.
    assert "/monitoring" not in Page(dave.get("/projects/p/endpoints/e")).html


def test_metrics_that_cannot_be_read_are_reported(dave: Person, misbehaving: Misbehaving) -> None:
    _answer(misbehaving)
    misbehaving.apart = {"/metrics": (500, b'{"message": "the disk is full"}')}
    page = Page(dave.get("/projects/p/endpoints/e/monitoring"))
    assert "the disk is full" in page.text
