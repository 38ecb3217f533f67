"""A run's page: its operations step by step, why it failed, its log, and what retries it."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.console.conftest import Misbehaving, Person
from tests.console.pages import Page

RUN = "/projects/p/runs/chain-1"
STEPS = [
    {
        "name": "waiting",
        "started_at": "2026-11-21T10:00:00.000000Z",
        "finished_at": "2026-11-21T10:00:01.000000Z",
        "duration_ms": 1000,
        "detail": {"operation_id": "other-1"},
    },
    {
        "name": "copying",
        "started_at": "2026-11-21T10:00:01.000000Z",
        "finished_at": "2026-11-21T10:00:03.500000Z",
        "duration_ms": 2500,
        "detail": {"bytes": 42_000_000, "of_bytes": 84_000_000},
    },
    {
        "name": "polishing_mirrors",
        "started_at": "2026-11-21T10:00:03.500000Z",
        "finished_at": "2026-11-21T10:00:04.000000Z",
        "duration_ms": 500,
        "detail": {"error": "the <b>mirror</b> broke", "mirrors": 2, "restart": True, "odd": {}},
    },
]


def told(**fields: Any) -> dict[str, Any]:
    return {
        "id": "one",
        "project_id": "p",
        "action": "create_branch",
        "status": "finished",
        "created_at": "2026-11-21T10:00:00Z",
        "updated_at": "2026-11-21T10:00:04Z",
        "chain_id": "chain-1",
        "initiator": {"type": "user", "name": "laptop"},
        "steps": STEPS,
        **fields,
    }


def answer_with(api: Misbehaving, operation: dict[str, Any], *others: dict[str, Any]) -> None:
    body = {
        "operation": operation,
        # Newest first, as in the API's lists.
        "operations": [*others[::-1], operation],
        "branches": [],
        "endpoints": [],
        "project": {"id": "p"},
    }
    api.body = json.dumps(body).encode()


def test_it_works(dave: Person, misbehaving: Misbehaving) -> None:
    answer_with(misbehaving, told(), told(id="two", action="start_compute"))
    page = Page(dave.get(RUN))
    assert "Create branch, then Start endpoint" in page.text
    assert "by API key “laptop”" in page.text
    assert "Waiting for operation other-1" in page.text
    assert 'href="/projects/p/operations/other-1"' in page.html
    assert "Copying the data 42 MB of 84 MB | +1.0 s |  | 2.5 s" in page.row("Copying the data")
    words = "Polishing mirrors mirrors 2 restart the <b>mirror</b> broke | +3.5 s |  | 500 ms"
    assert page.row("Polishing") == words
    assert "<b>mirror" not in page.html
    assert not page.polls
    # In their order, each in its own section.
    assert page.html.index('id="operation-one"') < page.html.index('id="operation-two"')
    assert "2026-11-21T10:00:01.000Z Copying the data · 42 MB · of 84 MB 2500 ms" in page.text


def test_an_operations_address_redirects_to_its_run(dave: Person, misbehaving: Misbehaving) -> None:
    answer_with(misbehaving, told())
    answer = dave.get("/projects/p/operations/one")
    assert answer["Location"] == f"{RUN}#operation-one"


def test_the_request_is_described_by_the_servers_events(
    dave: Person, misbehaving: Misbehaving
) -> None:
    def event(number: int, at: str, summary: str, **fields: Any) -> dict[str, Any]:
        about = {"operation_ids": ["one"], "project_id": "p"}
        return {"id": str(number), "at": at, "summary": summary, **about, **fields}

    taken = {**STEPS[1], "name": "picked_up"}
    answer_with(misbehaving, told(steps=[STEPS[0], taken]))
    body = json.loads(misbehaving.body)
    body["events"] = [
        event(3, "2026-11-21T10:00:04Z", "The end of it."),
        event(2, "2026-11-21T10:00:00.001Z", "Foreign.", operation_ids=["other"]),
        event(1, "2026-11-21T10:00:00Z", "Asked.", changes={"name": {"from": "a", "to": "b"}}),
    ]
    misbehaving.body = json.dumps(body).encode()
    page = Page(dave.get(RUN))
    assert "Request Asked. name a → b" in page.text
    assert "The end of it" not in page.text
    assert "Foreign" not in page.text


def test_the_failed_operation_is_blamed_and_not_those_behind_it(
    dave: Person, misbehaving: Misbehaving
) -> None:
    steps = [STEPS[0], STEPS[2], STEPS[2]]
    culprit = told(
        status="failed",
        error="no disk; ask for room",
        failures_count=2,
        steps=steps,
        branch_id="br-a",
        kind="create_branch",
    )
    victim = told(id="two", action="start_compute", status="failed", not_run_because="one")
    answer_with(misbehaving, culprit, victim)
    body = json.loads(misbehaving.body)
    body["branches"] = [{"id": "br-a", "name": "dev"}]
    misbehaving.body = json.dumps(body).encode()
    page = Page(dave.get(RUN))
    reason = "Why Create branch failed in “Polishing mirrors”, attempt 2 no disk; ask for room"
    assert reason in page.text
    assert "Not run as a result: Start endpoint." in page.text
    assert "The branch has no data yet." in page.text
    assert "Start endpoint Not run" in page.text
    assert "An earlier operation failed." in page.text
    # If every attempt failed with the same error, the error is shown once.
    assert page.text.count("failed with the same error") == 1


def test_raw_words_of_postgres_are_behind_a_sentence(
    dave: Person, misbehaving: Misbehaving
) -> None:
    raw = "postgres: odd\nFATAL:  odder\n"
    steps = [STEPS[0], {**STEPS[2], "detail": {"error": raw.strip()}}]
    answer_with(misbehaving, told(action="start_compute", status="failed", error=raw, steps=steps))
    page = Page(dave.get(RUN))
    plain = "Postgres did not start: odder."
    assert f"{plain} Details postgres: odd FATAL: odder" in page.text
    # The step has the sentence alone.
    assert page.text.count(plain) == 2
    assert page.html.count('<details class="raw"') == 1
    listed = Page(dave.get("/projects/p/operations"))
    assert plain in listed.text
    assert "FATAL" not in listed.text


@pytest.mark.parametrize(
    ("fields", "after"),
    [
        ({"kind": "restore_branch"}, "The branch keeps its previous data."),
        ({"kind": "create_branch"}, "The branch has no data yet."),
        ({"kind": "create_branch", "superseded": True}, ""),
        # An earlier release did not say what the copy was for.
        ({}, ""),
    ],
)
def test_what_to_do_about_a_failed_copy_depends_on_what_it_was_for(
    dave: Person, misbehaving: Misbehaving, fields: dict[str, Any], after: str
) -> None:
    answer_with(misbehaving, told(status="failed", error="no disk", branch_id="br-a", **fields))
    page = Page(dave.get(RUN))
    assert after in page.text
    assert bool(after) == ("The branch" in page.text)


def test_an_operation_that_no_worker_takes_has_a_warning(
    dave: Person, misbehaving: Misbehaving
) -> None:
    at = (datetime.now(UTC) - timedelta(seconds=45)).isoformat()
    queued: dict[str, Any] = {"name": "queued", "started_at": at, "finished_at": None, "detail": {}}
    answer_with(misbehaving, told(status="running", created_at=at, steps=[queued]))
    page = Page(dave.get(RUN))
    assert "No worker has taken it for 4" in page.text
    assert "1 operation in progress for 4" in page.text
    listed = Page(dave.get("/projects/p/operations"))
    assert "In progress for 4" in listed.row("Create branch")
    assert "No worker has taken it for 4" in listed.row("Create branch")
    at = datetime.now(UTC).isoformat()
    answer_with(misbehaving, told(status="running", steps=[queued | {"started_at": at}]))
    assert "No worker" not in Page(dave.get(RUN)).text


def test_an_operation_that_has_not_begun_is_waiting_and_not_running(
    dave: Person, misbehaving: Misbehaving
) -> None:
    answer_with(misbehaving, told(status="scheduling", steps=[]))
    page = Page(dave.get(RUN))
    assert "Waiting for" in page.text
    assert "In progress for" not in page.text
    answer_with(misbehaving, told(status="running", steps=[]))
    assert "In progress for" in Page(dave.get(RUN)).text


def test_the_resource_of_a_run_is_a_link_while_it_exists(
    dave: Person, misbehaving: Misbehaving
) -> None:
    answer_with(misbehaving, told(endpoint_id="ep-a", branch_id="br-a"))
    body = json.loads(misbehaving.body)
    body["endpoints"], body["branches"] = [{"id": "ep-a"}], [{"id": "br-a", "name": "dev"}]
    misbehaving.body = json.dumps(body).encode()
    page = Page(dave.get(RUN))
    assert 'href="/projects/p/endpoints/ep-a"' in page.html
    assert "deleted" not in page.text
    body["endpoints"], body["branches"] = [], []
    misbehaving.body = json.dumps(body).encode()
    page = Page(dave.get(RUN))
    assert 'href="/projects/p/endpoints/ep-a"' not in page.html
    assert page.text.count("deleted") == 2


def test_a_wait_for_an_operation_of_the_same_run_has_its_name(
    dave: Person, misbehaving: Misbehaving
) -> None:
    answer_with(misbehaving, told(), told(id="other-1", action="create_timeline"))
    assert "Waiting for “Create first branch”" in Page(dave.get(RUN)).text


def test_another_servers_run_is_shown_without_steps(dave: Person, misbehaving: Misbehaving) -> None:
    plain = told()
    for name in ("chain_id", "initiator", "steps"):
        del plain[name]
    for status in ("running", "finished", "failed", "cancelled", "teleported"):
        answer_with(misbehaving, plain | {"status": status})
        misbehaving.asked.clear()
        page = Page(dave.get("/projects/p/operations/one"))
        assert "Create branch" in page.text
        for words in (" by API key", "Try", "Cancel…", "Request"):
            assert words not in page.text, status
        assert "<form" not in page.html.partition('id="live"')[2].partition("</main>")[0]
        # It is not asked for calls that it does not have.
        assert len(set(misbehaving.asked)) == 4
        listed = Page(dave.get("/projects/p/operations"))
        assert "Filter" not in listed.text
        assert " by " not in listed.row("Create branch")
        assert dave.get("/projects/p/operations/one/live").status_code == 200


def test_it_polls_until_the_last_operation_has_ended(
    dave: Person, misbehaving: Misbehaving
) -> None:
    answer_with(misbehaving, told(), told(id="two", status="cancelling"))
    assert Page(dave.get(RUN)).polls
    answer_with(misbehaving, told(), told(id="two", status="cancelled"))
    assert not Page(dave.get(RUN)).polls


def test_a_run_and_its_retry_link_to_each_other(dave: Person, misbehaving: Misbehaving) -> None:
    retried = told(status="failed", error="no disk")
    anew = told(id="two", chain_id="chain-2", retry_of="one", initiator={"type": "retry"})
    answer_with(misbehaving, retried, anew)
    page = Page(dave.get(RUN))
    assert "Retried as run chain-2" in page.text
    assert 'href="/projects/p/runs/chain-2"' in page.html
    assert any("initiator=retry" in path for path in misbehaving.asked)
    page = Page(dave.get("/projects/p/runs/chain-2"))
    assert "Retry of operation one" in page.text
    assert "by a retry" in page.text


def test_an_unknown_run_shows_a_page_with_a_link_out(
    dave: Person, misbehaving: Misbehaving
) -> None:
    answer_with(misbehaving, told())
    answer = dave.get("/projects/p/runs/chain-9")
    assert answer.status_code == 404
    assert "There is no such run" in Page(answer).text


def test_the_page_is_shown_if_only_its_operations_can_be_read(
    dave: Person, misbehaving: Misbehaving
) -> None:
    answer_with(misbehaving, told(status="failed", error="no disk"))
    body = json.loads(misbehaving.body)
    del body["operation"]
    misbehaving.body = json.dumps(body).encode()
    page = Page(dave.get(RUN))
    assert "Why it failed no disk" in page.text
    assert "Log" in page.text


@pytest.mark.parametrize("chain_id", ["a/b", "ü", "x" * 300, " "])
def test_ids_that_cannot_be_part_of_an_address_do_no_harm(
    dave: Person, misbehaving: Misbehaving, chain_id: str
) -> None:
    answer_with(misbehaving, told(chain_id=chain_id, branch_id="b/b"))
    assert dave.get("/projects/p/operations").status_code == 200
    assert dave.get("/projects/p/timeline").status_code == 200
    assert dave.get("/projects/p/operations/one").status_code in (200, 302)
