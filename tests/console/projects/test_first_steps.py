"""The first steps on a new project's page."""

import json
from typing import Any

import pytest

from tests.console.conftest import Misbehaving, Person
from tests.console.pages import Page


def test_it_works(alice: Person) -> None:
    created = alice.api.new_project(name="fresh")
    url = f"/projects/{created['project']['id']}"
    page = Page(alice.get(url))
    assert "Create a project (done)" in page.text
    assert "Create a branch (open)" in page.text
    assert f'href="{url}/new-branch"' in page.html
    alice.api.finish(alice.api.post(f"{url}/branches", {"branch": {"name": "dev"}}))
    assert "Create a branch (done)" in Page(alice.get(url)).text
    (endpoint,) = created["endpoints"]
    path = f"{url}/endpoints/{endpoint['id']}"
    for action in ("suspend", "start"):
        alice.api.finish(alice.api.post(f"{path}/{action}"))
    assert "Let it suspend, and start again (done)" in Page(alice.get(url)).text


@pytest.mark.parametrize(
    ("project", "branches", "is_shown"),
    [
        ({"data_transfer_bytes": 0}, 2, True),
        ({"data_transfer_bytes": 9}, 2, False),
        ({}, 2, False),
        ({"data_transfer_bytes": 0}, 6, False),
    ],
)
def test_the_steps_go_once_all_are_done_or_the_project_has_grown(
    dave: Person,
    misbehaving: Misbehaving,
    project: dict[str, Any],
    branches: int,
    is_shown: bool,
) -> None:
    def operation(number: int, action: str) -> dict[str, Any]:
        return {"id": f"op-{number}", "action": action, "status": "finished", "endpoint_id": "e"}

    misbehaving.body = json.dumps(
        {
            "project": {"id": "p", **project},
            "branches": [{"id": f"br-{n}"} for n in range(1, branches + 1)],
            "endpoints": [{"id": "e", "branch_id": "br-1"}],
            # The newest first.
            "operations": [operation(2, "start_compute"), operation(1, "suspend_compute")],
        }
    ).encode()
    assert ("First steps" in Page(dave.get("/projects/p")).text) == is_shown
