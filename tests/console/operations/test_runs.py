"""A run's name, status and duration, and its position in the timeline."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.template.loader import render_to_string
from django.utils import timezone

from console.api.resources.operations import Operation
from console.operations.run_rows import things
from console.operations.runs import Run, runs_of
from console.operations.timeline import MAX_LANES, timeline
from console.operations.timescale import Scale
from console.pages.addresses import Existing

AT = datetime(2026, 11, 21, 10, tzinfo=UTC)
NAMES = {"br-a": "a"}


def operation(action: str, status: str = "finished", **fields: Any) -> Operation:
    told = {
        "id": f"of-{action}",
        "chain_id": "c",
        "branch_id": "br-a",
        "created_at": AT.isoformat(),
    }
    return Operation.read({**told, "action": action, "status": status, **fields})


def run(*actions: str, **fields: Any) -> Run:
    return Run([operation(action, endpoint_id="ep-a", **fields) for action in actions])


def test_a_run_is_named_after_what_was_requested() -> None:
    title = 'Restore branch a to 2026-11-27T01:58:00Z of "b"'
    with timezone.override(ZoneInfo("Asia/Kolkata")):
        assert run("create_branch", title=title).title.startswith(
            "Restore branch a to 2026-11-27 07"
        )
    changed = run("apply_config", title="Change endpoint ep-a: pooler_enabled").title
    assert changed == "Change endpoint ep-a: pooling"
    # Other servers do not say it, nor did an earlier release.
    assert run("polish", "start_compute").title == "Polish, then Start endpoint"
    assert run("").title == "An operation"


def test_a_run_is_about_no_branch_that_no_list_has() -> None:
    existing = Existing.of([], [])
    recovery = operation("create_branch", branch_id="br-hidden", kind="restore_branch")
    restored = Run([recovery, operation("create_branch", kind="restore_branch")])
    assert [one.id for one in things("p", restored, NAMES, existing)] == ["br-a"]
    snapshot = Run([operation("create_branch", branch_id="br-hidden", kind="create_snapshot")])
    assert not things("p", snapshot, NAMES, existing)


@pytest.mark.parametrize(
    ("statuses", "label"),
    [
        (("finished", "finished"), "OK"),
        (("running", "scheduling"), "In progress"),
        (("scheduling", "scheduling"), "Waiting"),
        # Between two operations, the run is not shown as queued again.
        (("finished", "scheduling"), "In progress"),
        (("finished", "failed"), "Error"),
        (("cancelling", "cancelling"), "Cancelling"),
        (("finished", "cancelled"), "Cancelled"),
        (("skipped",), "Skipped"),
        (("teleported",), "Teleported"),
    ],
)
def test_a_runs_status_follows_from_its_operations(statuses: tuple[str, ...], label: str) -> None:
    assert Run([operation("x", status) for status in statuses]).status.label == label


def test_operations_of_one_chain_are_one_run_in_order() -> None:
    listed = [
        operation("start_compute", chain_id="c2"),
        operation("create_branch", chain_id="c2"),
        operation("check_availability", chain_id=""),
        operation("suspend_compute", chain_id=""),
    ]
    found = [[each.action for each in one.operations] for one in runs_of(listed)]
    assert found == [
        ["create_branch", "start_compute"],
        ["check_availability"],
        ["suspend_compute"],
    ]


def test_the_duration_of_a_run() -> None:
    later = (AT + timedelta(seconds=2)).isoformat()
    assert run("x", updated_at=later).duration_ms == 2000
    # The operations' durations are more exact than times in whole seconds.
    assert run("x", updated_at=AT.isoformat(), total_duration_ms=149).duration_ms == 149
    assert run("x", updated_at=later, total_duration_ms=1149).duration_ms == 1149
    assert run("x", created_at="", updated_at="", total_duration_ms=7).duration_ms == 7
    assert run("x", created_at="", updated_at="").duration_ms is None


def test_a_scale_maps_times_to_positions() -> None:
    scale = Scale.over([(AT, AT + timedelta(seconds=4)), None, (AT, AT + timedelta(seconds=8))])
    assert scale is not None
    bar = scale.bar((AT + timedelta(seconds=4), AT + timedelta(seconds=6)))
    assert (bar.left, bar.width) == ("50.00%", "25.00%")
    assert [mark.label for mark in scale.marks_since_begin()] == ["0", "2 s", "4 s", "6 s", "8 s"]
    # A moment without a duration is still visible, and what is outside is cut off.
    narrow = scale.bar((AT + timedelta(seconds=8), AT + timedelta(seconds=90)))
    assert (narrow.left, narrow.width) == ("99.40%", "0.60%")
    assert Scale.over([None]) is None


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (0.0004, ["0"]),
        (0.35, ["0", "100 ms", "200 ms", "300 ms"]),
        (400, ["0", "2 min", "4 min", "6 min"]),
        (90_000_000, ["0", "25000 h"]),
    ],
)
def test_an_axis_has_few_round_marks(seconds: float, labels: list[str]) -> None:
    scale = Scale(AT, AT + timedelta(seconds=seconds))
    assert [mark.label for mark in scale.marks_since_begin()] == labels


def test_an_axis_of_a_day_shows_the_time() -> None:
    scale = Scale(AT - timedelta(hours=6), AT + timedelta(minutes=7))
    # A mark at the very edge is left out.
    assert [mark.label for mark in scale.marks_of_day()] == ["06:00", "08:00"]
    # Marks are round in the reader's time zone.
    with timezone.override(ZoneInfo("Asia/Kolkata")):
        marks = scale.marks_of_day()
    assert {mark.label[3:] for mark in marks} == {"00"}
    assert scale.marks_of_day()[0].left not in [mark.left for mark in marks]


def test_the_lane_of_a_snapshot_has_the_snapshots_name() -> None:
    title = "Create snapshot nightly"
    at = datetime.now(UTC).isoformat()
    fields = {"branch_id": "br-hidden", "kind": "create_snapshot", "title": title}
    made = operation("create_branch", created_at=at, **fields)
    (lane,) = timeline("p", [made], 1, NAMES, Existing.of([], [])).lanes
    assert (lane.label, lane.is_id, lane.url) == (title, False, "")


def test_the_timeline_of_a_new_project_begins_with_its_creation() -> None:
    now = datetime.now(UTC)
    run = operation("start_compute", created_at=(now - timedelta(seconds=40)).isoformat())

    def left(since: datetime | None) -> float:
        found = timeline("p", [run], 1, {}, Existing.of([], []), since=since)
        return float(found.lanes[0].runs[0].bar.left.rstrip("%"))

    assert left(None) == left(now - timedelta(days=1)) > 98
    assert 20 < left(now - timedelta(minutes=1)) < 40
    assert 85 < left(now - timedelta(minutes=10)) < 98


def test_the_table_of_a_timeline_has_also_the_lanes_that_are_not_drawn() -> None:
    now = datetime.now(UTC).isoformat()
    runs = [
        operation("start_compute", created_at=now, endpoint_id=f"ep-{n}", chain_id=f"c-{n}")
        for n in range(MAX_LANES + 2)
    ]
    found = timeline("p", runs, 1, {}, Existing.of([], []))
    assert (len(found.drawn_lanes), found.left_out) == (MAX_LANES, 2)
    page = render_to_string("_timeline_page.html", {"timeline": found, "project": {"id": "p"}})
    assert all(page.count(f"<code>ep-{n}</code>") == (n < MAX_LANES) + 1 for n in range(12))
