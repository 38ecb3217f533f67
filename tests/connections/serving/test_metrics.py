"""One address of a host serves the figures of all its processes."""

import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import requests

from controlplane.metrics import figures
from controlplane.metrics.figures import READ_FROM_HOST
from tests.selection import first_of
from tests.support.log_lines import await_line, read_log
from tests.support.place import Place
from tests.support.processes import proxy_processes
from tests.support.scraped import address, scrape
from tests.support.stack import ROOT, Stack, free_port, running_stack, state_dir
from tests.support.waiting import wait_for

__all__ = ["state_dir"]

# Ids of the kinds that Perch gives, and addresses.
ID = re.compile(r"(ep|br|snap|wh)-[a-z]+-[a-z]+-\d|[0-9a-f]{8}-[0-9a-f]{4}-|\d+\.\d+\.\d+\.\d+")
LOGIN, WAKE = ("accepted", "tls", "password"), ("handed_over", "waited", "connected")


def test_one_address_has_the_figures_of_all_processes(stack: Stack, place: Place) -> None:
    before = scrape(stack)
    place.suspend()
    with place.connect() as client:
        client.execute("SELECT 1")
        wait_for(lambda: scrape(stack).total("perch_connections", state="connected") >= 1, "gauge")
    place.client.get(place.path)

    def has_grown(name: str, labels: dict[str, str]) -> bool:
        return scrape(stack).total(name, **labels) > before.total(name, **labels)

    route = "api/v2/projects/{project_id}"
    for name, labels in (
        ("perch_wake_seconds_count", {"outcome": "woken"}),
        *(
            ("perch_wake_part_seconds_count", {"part": part})
            for part in (*LOGIN, *WAKE, "first_answer")
        ),
        ("perch_connections_opened_total", {"kind": "direct"}),
        ("perch_operations_total", {"action": "start_compute", "status": "finished"}),
        ("perch_operation_seconds_count", {"action": "suspend_compute"}),
        ("perch_api_requests_total", {"method": "GET", "route": route, "status": "200"}),
        ("perch_api_request_seconds_count", {"method": "GET", "route": route}),
        ("perch_round_seconds_count", {"round": "reconcile_host"}),
        ("perch_client_bytes_total", {"direction": "sent"}),
        ("perch_client_bytes_total", {"direction": "received"}),
    ):
        wait_for(partial(has_grown, name, labels), f"{name} {labels}")
    wait_for(
        lambda: all(
            scrape(stack).total("perch_process_resident_bytes", process=process) > 10 << 20
            for process in ("api", "worker", "proxy", "metrics")
        ),
        "a sample of every process",
    )
    found = scrape(stack)
    assert found.total("perch_database_up") == 1
    assert found.total("perch_endpoints", state="active") >= 1
    assert found.total("perch_branches") >= 1
    assert 0 < found.total("perch_disk_free_bytes") < found.total("perch_disk_size_bytes")
    assert 0 <= found.total("perch_silence_seconds", process="worker") < 60
    assert found.total("perch_certificate_expiry_timestamp_seconds", certificate="authority") > 2e9
    assert found.total("perch_processes", process="proxy") == len(proxy_processes(stack))
    assert found.total("perch_database_connections", process="api") >= 1


def test_no_label_has_an_id_or_what_a_caller_sent(stack: Stack, place: Place) -> None:
    place.client.get(place.endpoint_path())
    place.client.call("GET", "/no/such/path/ep-quiet-heron-123456")
    place.client.call("BREW", "/projects")
    place.refusal(user="someone")
    place.refusal(dbname="nowhere")
    wait_for(
        lambda: (
            scrape(stack).total("perch_connections_refused_total", reason="password_failed")
            and scrape(stack).total("perch_connections_refused_total", reason="compute_refused")
        ),
        "the refusals",
    )
    found = scrape(stack)
    values = {value for sample in found.samples for value in sample.labels.values()}
    version = {sample.labels["version"] for sample in found.families["perch_info"].samples}
    sent = ("someone", "nowhere", "BREW", "quiet")
    odd = [one for one in values - version if ID.search(one) or any(word in one for word in sent)]
    assert not odd
    assert found.total("perch_api_requests_total", method="other", route="none") >= 0
    assert found.families.keys() <= figures.known_names() | READ_FROM_HOST.keys()


def test_the_public_ports_do_not_serve_the_figures(stack: Stack) -> None:
    for url in (stack.api_url.removesuffix("/api/v2"), stack.console_url):
        assert "perch_" not in requests.get(f"{url}/metrics", timeout=10).text
    root = address(stack).removesuffix("/metrics")
    assert root.startswith("http://127.0.0.1:")
    assert requests.get(f"{root}/", timeout=10).status_code == 404
    assert f"Metrics  {address(stack)}" in (stack.state_dir / "up.log").read_text()


@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])
def test_a_wakes_line_has_its_parts_and_its_operation(
    stack: Stack, place: Place, pooled: bool
) -> None:
    place.suspend()
    assert place.query("SELECT 1", pooled=pooled) == (1,)
    started = place.endpoint_operations("start_compute")[0]["id"]
    line = await_line(stack, "proxy", message="woken", operation=started)
    connected = await_line(stack, "proxy", message="connected", operation=started)
    assert line["request"] == connected["request"]
    assert line["endpoint"] == place.endpoint_id
    parts = [float(line[f"{part}_ms"]) for part in (*LOGIN, *WAKE, "first_answer")]
    assert min(parts) >= 0
    assert abs(sum(parts) - float(line["ms"])) < 1
    assert float(line["waited_ms"]) > 1
    assert [connected[f"{part}_ms"] for part in (*LOGIN, *WAKE)] == [
        line[f"{part}_ms"] for part in (*LOGIN, *WAKE)
    ]


@pytest.mark.parametrize("tls", first_of([True, False]), ids=["tls", "plain"])
def test_a_wakes_parts_are_what_the_client_waits(stack: Stack, place: Place, tls: bool) -> None:
    """On a busy machine the client itself may be late, so the best of a few wakes counts."""

    def adds_up() -> bool:
        place.suspend()
        began = time.monotonic()
        assert place.query("SELECT 1", tls=tls) == (1,)
        waited = (time.monotonic() - began) * 1000
        started = place.endpoint_operations("start_compute")[0]["id"]
        line = await_line(stack, "proxy", message="woken", operation=started)
        parts = sum(float(line[f"{part}_ms"]) for part in (*LOGIN, *WAKE, "first_answer"))
        return abs(waited - parts) < max(50, 0.05 * waited)

    wait_for(adds_up, "a wake whose parts are all of the client's time")


def test_a_connection_to_a_running_compute_is_no_wake(stack: Stack, place: Place) -> None:
    assert place.query("SELECT 1") == (1,)

    def lines_with(words: str) -> list[str]:
        lines = (stack.state_dir / "log" / "proxy.log").read_text().splitlines()
        return [one for one in lines if place.endpoint_id in one and words in one]

    wait_for(lambda: lines_with("=connected"), "the line")
    (line,) = lines_with("=connected")
    assert "password_ms=" in line
    assert "waited_ms=" not in line
    assert not lines_with("=woken")


def test_a_parked_clients_wake_has_only_its_own_parts(stack: Stack, place: Place) -> None:
    with place.connect(pooled=True) as client:
        client.execute("SELECT 1")
        place.suspend()
        client.execute("SELECT 2")
    started = place.endpoint_operations("start_compute")[0]["id"]
    line = await_line(stack, "proxy", message="woken", operation=started)
    assert not {"tls_ms", "password_ms"} & line.keys()
    assert {"waited_ms", "first_answer_ms"} <= line.keys()


@pytest.mark.thorough
def test_the_command_alone_serves_the_figures_where_the_operator_says(stack: Stack) -> None:
    port = free_port()
    environment = {
        **os.environ,
        "PERCH_STATE_DIR": str(stack.state_dir),
        "PERCH_METRICS_LISTEN": f"127.0.0.1:{port}",
    }
    command, known = [sys.executable, "manage.py", "metrics"], address(stack)
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    try:
        wait_for(lambda: address(stack) == f"http://127.0.0.1:{port}/metrics", "the address")
        assert scrape(stack).total("perch_processes", process="metrics") >= 1
        # The port is taken, and no other was asked for.
        refused = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert refused.returncode == 1
        assert f"cannot listen on 127.0.0.1:{port}" in refused.stderr
    finally:
        process.terminate()
        process.wait(20)
        (stack.state_dir / "metrics-address").write_text(f"{known}\n")
    assert process.returncode == 0


@pytest.mark.thorough
def test_a_service_without_figures_works(state_dir: Path) -> None:
    with running_stack(state_dir, PERCH_METRICS_LISTEN="off") as stack:
        assert Place.create(stack, stack.client()).query("SELECT 1") == (1,)
        assert not (state_dir / "metrics-address").exists()
        assert not (state_dir / "metrics").exists()
        assert "Metrics" not in (state_dir / "up.log").read_text()


def test_a_clients_id_leads_to_the_start_that_it_caused(stack: Stack, place: Place) -> None:
    place.suspend()
    before = len(read_log(stack.state_dir, "proxy"))
    assert place.query("SELECT 1") == (1,)
    started = place.endpoint_operations("start_compute")[0]
    line = await_line(stack, "worker", operation=started["id"], message="operation finished")
    joined = [
        line
        for line in read_log(stack.state_dir, "proxy")[before:]
        if line.get("endpoint") == place.endpoint_id and line["message"] == "connected"
    ]
    assert [one["request"] for one in joined] == [line["request"]]
    assert (joined[0]["role"], joined[0]["client"]) == (place.role, "127.0.0.1")


def test_the_name_of_a_role_cannot_forge_a_line(stack: Stack, shop: Place) -> None:
    forged = "x\n2026-11-21T16:20:01.123Z level=INFO process=proxy message=connected"
    shop.refusal(user=forged, password="wrong")
    # The whole name is one value of one line.
    error = f'password authentication failed for user "{forged}"'
    await_line(stack, "proxy", message="connection refused", sqlstate="28P01", error=error)
