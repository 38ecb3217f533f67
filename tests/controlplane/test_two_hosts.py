"""Two hosts in one region, as real processes: each has its own state directory, worker and proxy,
and they share the metadata."""

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
import requests

from tests.support.place import Place
from tests.support.second_host import (
    ADDRESS,
    NAME,
    SecondHost,
    placing_on,
    running,
    second_host,
    variables,
)
from tests.support.stack import ROOT, Stack, free_port
from tests.support.waiting import wait_for

SLEEP = "SELECT pg_sleep(63)"


def test_each_project_lives_on_its_host(stack: Stack, state_dir: Path) -> None:
    client = stack.client()
    here = Place.create(stack, client)
    with second_host(stack, state_dir) as second:
        with placing_on(stack, NAME):
            there = Place.create(second.stack, client)
        endpoint = there.client.get(there.endpoint_path())["endpoint"]
        # The address of the region, whichever host serves the endpoint.
        assert endpoint["host"] == f"{there.endpoint_id}.localhost"
        assert endpoint["proxy_host"] == "localhost"
        uri = there.created["connection_uris"][0]["connection_uri"]
        assert f"@localhost:{stack.proxy_port}/" in uri
        assert there.is_served(host=f"{there.endpoint_id}.{ADDRESS}")
        assert second.stack.data_dir(there.branch_id).is_dir()
        assert not stack.data_dir(there.branch_id).exists()
        assert here.is_served()
        _served_by_the_other_proxy(there, port=stack.proxy_port, address="localhost")
        _served_by_the_other_proxy(here, port=second.stack.proxy_port, address=ADDRESS)
        details = requests.get(stack.api_url.replace("/api/v2", "/healthz/details"), timeout=10)
        assert [host["id"] for host in details.json()["hosts"]] == ["local", NAME]
        assert [region["id"] for region in details.json()["regions"]] == ["local"]
        client.delete(there.path)
        data = second.stack.data_dir(there.branch_id)
        wait_for(lambda: not data.exists(), "the removal of the data")
    assert here.is_served()


def test_placing_on_one_host_moves_nothing_to_it(
    stack: Stack, place: Place, second: SecondHost
) -> None:
    with placing_on(stack, NAME):
        there = Place.create(second.stack, place.client)
        _empty_if_drained(stack, "local")
    assert second.stack.data_dir(there.branch_id).is_dir()
    operations = place.client.get(f"{place.path}/operations")["operations"]
    assert "move_project" not in [one["action"] for one in operations]
    there.client.delete(there.path)


@pytest.mark.thorough
def test_a_copy_is_refused_beside_the_original_and_ends_one_that_was_paused(
    stack: Stack, state_dir: Path
) -> None:
    original, copy = state_dir / "original", state_dir / "copy"
    with second_host(stack, original) as second, stack.database() as database:
        shutil.copytree(original, copy, ignore=shutil.ignore_patterns("sockets", "proxy", "*.new"))
        for command in ("worker", "proxy"):
            done = subprocess.run(
                [sys.executable, "manage.py", command],
                cwd=ROOT,
                env=variables(stack, copy) | {"PERCH_PROXY_PORT": str(free_port())},
                capture_output=True,
                text=True,
                timeout=300,
            )
            assert done.returncode != 0
            assert "a copy of the state directory" in done.stderr
        both = (second.worker, second.proxy)
        for process in both:
            os.killpg(process.pid, signal.SIGSTOP)
        database.execute(
            "UPDATE controlplane_host SET worker_seen_at = now() - interval '1 minute',"
            " proxy_seen_at = now() - interval '1 minute' WHERE id = %s",
            [NAME],
        )
        before = _place(database)
        with running("worker", variables(stack, copy), copy / "worker.log"):
            wait_for(lambda: _place(database) != before, "the copy to serve", timeout=120)
            for process in both:
                os.killpg(process.pid, signal.SIGCONT)
            for process in both:
                assert process.wait(120) != 0
            assert "is served from elsewhere" in (original / "worker.log").read_text()
            assert "is served from elsewhere" in (original / "proxy.log").read_text()


def _empty_if_drained(stack: Stack, host: str) -> None:
    """Do what that host's worker does once a minute."""
    code = (
        "from controlplane.models import Host;"
        "from controlplane.services.moving import go_on_emptying;"
        f"go_on_emptying(Host.objects.get(id={host!r}))"
    )
    subprocess.run(
        [sys.executable, "manage.py", "shell", "--settings", "controlplane.settings", "-c", code],
        cwd=ROOT,
        env=variables(stack, stack.state_dir),
        check=True,
        timeout=60,
    )


def _place(database: "psycopg.Connection[Any]") -> Any:
    row = database.execute("SELECT state_place FROM controlplane_host WHERE id = %s", [NAME])
    return row.fetchone()


def _served_by_the_other_proxy(place: Place, *, port: int, address: str) -> None:
    """Under the region's host name and that of the proxy's host, with all that its own proxy
    offers."""
    assert place.is_served(port=port)
    assert place.is_served(port=port, channel_binding="require")
    assert place.is_served(port=port, host=f"{place.endpoint_id}.{address}")
    with place.connect(port=port, pooled=True) as pooled:
        place.suspend()
        # The second proxy has parked the client, and wakes the compute for its next statement.
        assert pooled.execute("SELECT 1").fetchone() == (1,)
    place.suspend()
    assert place.is_served(port=port, tls=False)
    assert place.state() == "active"
    _cancels_its_query(place, port=port)
    wrong = str(place.refusal(port=port, password="wrong"))
    assert "password authentication failed" in wrong


def _cancels_its_query(place: Place, *, port: int) -> None:
    """The cancel request, a connection of its own, may arrive at another process of the proxy."""
    with place.connect(port=port) as connection, ThreadPoolExecutor() as pool:
        sleeping = pool.submit(connection.execute, SLEEP)
        wait_for(lambda: _runs(place, SLEEP), "the query to run")
        connection.cancel_safe()
        with pytest.raises(psycopg.errors.QueryCanceled):
            sleeping.result(60)


def _runs(place: Place, statement: str) -> bool:
    with place.stack.compute(place.endpoint_id) as platform:
        running = "SELECT FROM pg_stat_activity WHERE query = %s AND state = 'active'"
        return platform.execute(running, [statement]).rowcount > 0
