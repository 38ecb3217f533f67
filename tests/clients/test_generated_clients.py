"""Clients that generators make from the published document. Each follows a project from its
creation to its deletion."""

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clients import nodejs
from tests.support.client import Client

ENDED = ["finished", "finished"]


@pytest.fixture(scope="module")
def document(alice: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("document") / "openapi.json"
    path.write_text(alice.call("GET", "/openapi.json").text)
    return path


@pytest.mark.thorough
def test_openapi_python_client(
    alice: Client, document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yml").write_text("post_hooks: []")
    package = tmp_path / "generated"
    made = subprocess.run(
        [
            *(Path(sys.executable).with_name("openapi-python-client"), "generate"),
            *("--path", document, "--output-path", package, "--meta", "none"),
            *("--config", tmp_path / "config.yml", "--fail-on-warning"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert use_a_project_in_python(alice) == {
            "ended": ENDED,
            "endpoints": ["active"],
            "kept": "text",
            "deleted": True,
            "gone": 404,
        }
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "generated"]:
            del sys.modules[name]


def use_a_project_in_python(alice: Client) -> dict[str, Any]:
    models = importlib.import_module("generated.models")
    make_client = importlib.import_module("generated").AuthenticatedClient

    def call(module: str, *arguments: str, **named: Any) -> Any:
        function = importlib.import_module(f"generated.api.{module}")
        return function.sync_detailed(*arguments, client=client, **named)

    with make_client(
        base_url=alice.api_url, token=alice.key, raise_on_unexpected_status=True
    ) as client:
        wanted = models.NewProject(name="by openapi-python-client")
        made = call("projects.create_project", body=models.CreateProject(project=wanted)).parsed
        project_id = made.project.id
        ended = [
            call("operations.get_project_operation", project_id, one.id, wait=60).parsed.operation
            for one in made.operations
        ]
        found = call("endpoints.list_project_endpoints", project_id).parsed.endpoints
        noted = models.CreateBranch.from_dict({"annotation_value": {"kept": "text"}})
        call("branches.create_project_branch", project_id, body=noted)
        notes = call("branches.list_project_branches", project_id).parsed.annotations.to_dict()
        deleted = call("projects.delete_project", project_id).parsed.project.id == project_id
        return {
            "ended": [one.status for one in ended],
            "endpoints": [one.current_state for one in found],
            "kept": next(one["value"]["kept"] for one in notes.values()),
            "deleted": deleted,
            "gone": call("projects.get_project", project_id).status_code,
        }


@pytest.mark.thorough
def test_openapi_typescript(node: None, alice: Client, document: Path, tmp_path: Path) -> None:
    """A program is checked against the types of the client, and then run."""
    (tmp_path / "node_modules").symlink_to(nodejs.MODULES)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copy(nodejs.HERE / "generated_client.ts", tmp_path)
    made = nodejs.run(
        "node", nodejs.program("openapi-typescript"), document, "-o", "api.d.ts", cwd=tmp_path
    )
    assert made.status == 0, made.output + made.told
    checked = nodejs.run(
        *("node", nodejs.program("typescript").with_name("tsc"), "--strict"),
        *("--target", "es2022", "--module", "nodenext", "--skipLibCheck"),
        "generated_client.ts",
        cwd=tmp_path,
    )
    assert checked.status == 0, checked.output + checked.told
    ran = nodejs.run(
        *("node", "generated_client.js"),
        cwd=tmp_path,
        environment={"API_KEY": alice.key, "API_URL": alice.api_url},
    )
    assert ran.status == 0, ran.told
    assert json.loads(ran.output) == {
        "ended": ENDED,
        "endpoints": ["active"],
        "branches": ["main"],
        "deleted": True,
        "gone": 404,
        "refused": "project.name",
    }
