"""Runs schemathesis against the running service: every check, including the document's links, for a
bounded time, with an unlimited key and with limited ones.

It runs in a process of its own, because its pytest plugin and hypothesis settings would affect the
other tests.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.selection import first_of
from tests.support.client import Client
from tests.support.stack import ROOT, Stack

# A valid request by the schema is refused with these for reasons that a schema cannot express: an
# invalid cursor (400), a disabled endpoint (406), passwords that are not stored (412), a limit or a
# value that is not available (422), a busy project (423).
CONFIGURATION = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 400, 401, 403, 404, 406, 409, 412, 422, 423, 429]
"""
SECONDS = {"one project": 8, "full": 35, "read-only": 8}


@pytest.mark.thorough
@pytest.mark.parametrize("reach", first_of(SECONDS))
def test_schemathesis_finds_no_error(stack: Stack, tmp_path: Path, reach: str) -> None:
    client = stack.client()
    client.new_project(name="there from the beginning")
    try:
        done = run(stack, tmp_path, key_of(client, reach), SECONDS[reach])
    finally:
        for project in client.get("/projects", limit=400)["projects"]:
            client.call("DELETE", f"/projects/{project['id']}")
    assert done.returncode == 0, done.stdout[-20_000:]
    assert "Tested: " in done.stdout


def key_of(client: Client, reach: str) -> str:
    if reach == "full":
        return client.key
    (project,) = client.get("/projects")["projects"]
    limits = {"read-only": {"read_only": True}, "one project": {"project_id": project["id"]}}
    return str(client.post("/api_keys", {"key_name": reach, **limits[reach]})["key"])


def run(
    stack: Stack, directory: Path, key: str, seconds: int
) -> "subprocess.CompletedProcess[str]":
    configuration = directory / "schemathesis.toml"
    configuration.write_text(CONFIGURATION)
    return subprocess.run(
        [
            *(Path(sys.executable).with_name("schemathesis"), "--config-file", configuration),
            *("run", f"{stack.api_url}/openapi.json", "--header", f"Authorization: Bearer {key}"),
            *("--checks", "all", "--max-time", str(seconds), "--request-timeout", "20"),
            *("--max-examples", "5", "--continue-on-failure", "--suppress-health-check", "all"),
            *("--generation-database", "none", "--no-color", "--output-truncate", "false"),
        ],
        cwd=directory,
        env={
            **os.environ,
            "SCHEMATHESIS_HOOKS": "tests.support.schemathesis_hooks",
            "PYTHONPATH": str(ROOT),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds + 120,
    )
