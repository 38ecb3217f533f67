"""One trace leads from a caller's request to its operation, and to the clients that wait for it."""

import secrets
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from tests.support.log_lines import await_line
from tests.support.place import Place
from tests.support.processes import held_still
from tests.support.stack import Stack, running_stack, state_dir
from tests.support.trace_receiver import Received, TraceReceiver, trace_receiver
from tests.support.waiting import wait_for

__all__ = ["state_dir"]

WAITS_FOR = "SELECT FROM controlplane_operation WHERE id = %s AND lane = 'wakes'"
LOGIN, WAKE = ("accepted", "tls", "password"), ("handed_over", "waited", "connected")


def new_traceparent() -> tuple[str, str, str]:
    """Return a trace's id, a span's id, and the header."""
    trace, span = secrets.token_hex(16), secrets.token_hex(8)
    return trace, span, f"00-{trace}-{span}-01"


def start(place: Place, **headers: str) -> str:
    """Request a start; return the operation's id."""
    response = place.client.call("POST", place.endpoint_path(rest="/start"), headers=headers)
    return str(response.json()["operations"][0]["id"])


def test_a_requests_trace_is_in_the_lines_of_the_api_and_the_worker(
    stack: Stack, place: Place
) -> None:
    place.suspend()
    trace, _, header = new_traceparent()
    operation = start(place, traceparent=header)
    line = await_line(stack, "worker", operation=operation, message="operation finished")
    assert line["trace"] == trace
    answered = await_line(stack, "api", request=line["request"], message="answered")
    assert answered["trace"] == trace
    with stack.database() as connection:
        kept = connection.execute(
            "SELECT traceparent FROM controlplane_operation WHERE id = %s", [operation]
        ).fetchone()
    assert kept == (header,)


def test_a_header_that_is_not_valid_is_ignored(stack: Stack, place: Place) -> None:
    place.suspend()
    operation = start(place, traceparent=f"00-{'0' * 32}-{secrets.token_hex(8)}-01")
    line = await_line(stack, "worker", operation=operation, message="operation finished")
    assert "trace" not in line
    assert "trace" not in await_line(stack, "api", request=line["request"], message="answered")


def test_a_clients_wake_begins_a_trace(stack: Stack, place: Place) -> None:
    place.suspend()
    assert place.query("SELECT 1") == (1,)
    operation = place.endpoint_operations("start_compute")[0]["id"]
    line = await_line(stack, "worker", operation=operation, message="operation finished")
    for message in ("connected", "woken"):
        found = await_line(stack, "proxy", operation=operation, message=message)
        assert (found["request"], found["trace"]) == (line["request"], line["trace"])


@pytest.mark.thorough
def test_request_operation_and_wake_are_one_trace_in_opentelemetry(state_dir: Path) -> None:
    with (
        trace_receiver() as receiver,
        running_stack(
            state_dir, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, OTEL_BSP_SCHEDULE_DELAY="100"
        ) as stack,
    ):
        place = Place.create(stack, stack.client())
        check_a_requests_trace(receiver, stack, place)
        check_a_wakes_trace(receiver, place)
        check_a_failure(receiver, place)


def check_a_requests_trace(receiver: TraceReceiver, stack: Stack, place: Place) -> None:
    place.suspend()
    trace, caller, header = new_traceparent()
    with ThreadPoolExecutor(1) as client:
        with held_still(stack, "worker"), stack.database() as connection:
            operation = start(place, traceparent=header)
            answer = client.submit(place.query, "SELECT 1")
            wait_for(
                lambda: connection.execute(WAITS_FOR, [operation]).fetchone() is not None,
                "the client to wait for the start",
            )
        assert answer.result() == (1,)
    done = receiver.await_span("start_compute", operation=operation)
    woken = receiver.await_span("wake", operation=operation)
    request = next(span for span in receiver.in_trace(trace) if span.service == "perch-api")
    assert request.name == "POST /api/v2/projects/{project_id}/endpoints/{endpoint_id}/start"
    assert [request.parent, done.parent, woken.parent] == [caller, request.id, done.id]
    assert {done.trace, woken.trace} == {trace}
    assert [done.service, woken.service] == ["perch-worker", "perch-proxy"]
    check_the_parts(receiver, done, woken)
    for process in ("api", "worker", "proxy"):
        await_line(stack, process, trace=trace)


def check_the_parts(receiver: TraceReceiver, done: Received, woken: Received) -> None:
    wait_for(lambda: children(receiver, woken)[-1:] == ["first_answer"], "the wake's last part")
    assert children(receiver, woken) == [*LOGIN, *WAKE, "first_answer"]
    wait_for(lambda: "run" in children(receiver, done), "the operation's attempt")
    assert set(children(receiver, done)) == {"queued", "run", "wake"}
    run = next(span for span in receiver.in_trace(done.trace) if span.name == "run")
    assert {"starting", "publishing"} <= set(children(receiver, run))
    for span in receiver.in_trace(done.trace):
        parent = next((one for one in receiver.spans if one.id == span.parent), None)
        if parent in (done, run):
            # The wake ends after the start that it waits for.
            assert parent.began - 0.01 <= span.began <= span.ended
            assert span == woken or span.ended <= parent.ended + 0.01


def children(receiver: TraceReceiver, parent: Received) -> list[str]:
    """Return the names of the parent's child spans, in the order of time."""
    spans = [span for span in receiver.in_trace(parent.trace) if span.parent == parent.id]
    return [span.name for span in sorted(spans, key=lambda span: (span.began, span.ended))]


def check_a_wakes_trace(receiver: TraceReceiver, place: Place) -> None:
    place.suspend()
    assert place.query("SELECT 1") == (1,)
    operation = place.endpoint_operations("start_compute")[0]["id"]
    woken = receiver.await_span("wake", operation=operation)
    done = receiver.await_span("start_compute", operation=operation)
    assert (woken.parent, done.parent, done.trace) == ("", woken.id, woken.trace)
    assert woken.began < done.began < done.ended < woken.ended


def check_a_failure(receiver: TraceReceiver, place: Place) -> None:
    place.suspend()
    conninfo = make_conninfo(**place.parameters())
    connect = [sys.executable, "-c", "import psycopg, sys; psycopg.connect(sys.argv[1])", conninfo]
    with held_still(place.stack, "worker"), subprocess.Popen(connect) as client:
        wait_for(lambda: place.endpoint().get("pending_state") == "active", "the start's request")
        client.kill()
        woken = receiver.await_span("wake", endpoint=place.endpoint_id, outcome="abandoned")
    assert (woken.parent, woken.failed) == ("", True)
    wait_for(
        lambda: children(receiver, woken) == ["start_compute"],
        "the span of the start, which goes on",
    )
