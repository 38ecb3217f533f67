"""Prometheus reads a project's metrics as the documents say."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.client import Client
from tests.support.stack import ROOT, Stack, free_port
from tests.support.waiting import wait_for

PAGE = ROOT / "docs" / "how-to" / "monitoring.md"
MISSING = "Prometheus is not installed (apt-get install prometheus)"


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("prometheus") is None, reason=MISSING)
def test_prometheus_reads_a_project_by_the_documented_configuration(
    stack: Stack, tmp_path: Path
) -> None:
    client = stack.client()
    created = client.new_project()
    project, endpoint = created["project"]["id"], created["endpoints"][0]["id"]
    write_key(client, project, tmp_path / "perch-key")
    (documented,) = re.findall(r"```yaml\n(.+?)```", PAGE.read_text(), re.DOTALL)
    text = documented.replace("quiet-heron-12345678", project)
    text = text.replace("127.0.0.1:8001", stack.api_url.split("/")[2]).replace("60s", "1s")
    config = tmp_path / "prometheus.yml"
    config.write_text(text)
    subprocess.run(["promtool", "check", "config", config], check=True, capture_output=True)
    named = set(re.findall(r"`(perch_endpoint_\w+)`", PAGE.read_text()))
    with running_prometheus(config, tmp_path) as address:

        def series() -> list[dict[str, Any]]:
            query = {"query": f'{{__name__=~"perch_.*", endpoint="{endpoint}"}}'}
            answer = requests.get(f"{address}/api/v1/query", params=query, timeout=10).json()
            return [one["metric"] for one in answer["data"]["result"]]

        wait_for(
            lambda: {one["__name__"] for one in series()} == named, "all figures in Prometheus"
        )
        assert {one["branch"] for one in series()} == {created["branch"]["id"]}


def write_key(client: Client, project: str, path: Path) -> None:
    body = {"key_name": "prometheus", "project_id": project, "read_only": True}
    path.write_text(client.post("/api_keys", body)["key"])


@contextmanager
def running_prometheus(config: Path, place: Path) -> Iterator[str]:
    """Run Prometheus; give its address once it answers."""
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={place / 'data'}"]
    with (place / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address={address}"], stdout=log, stderr=log
        )
    try:
        wait_for(lambda: is_ready(address), "Prometheus")
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(30)


def is_ready(address: str) -> bool:
    try:
        return requests.get(f"http://{address}/-/ready", timeout=1).ok
    except requests.RequestException:
        return False
