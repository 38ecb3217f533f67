"""The workflow in docs/ uses only inputs that the actions have."""

from pathlib import Path

import pytest
import yaml

WORKFLOW = Path(__file__).parents[2] / "docs" / "workflows" / "database-per-pull-request.yml"
# From the actions' own descriptions.
COMMON = {"api_key", "api_host", "project_id"}
INPUTS = {
    "neondatabase/create-branch-action@v6": COMMON | {"branch_name", "parent_branch", "expires_at"},
    "neondatabase/schema-diff-action@v1": COMMON | {"compare_branch", "base_branch", "database"},
    "neondatabase/delete-branch-action@v3": COMMON | {"branch"},
}

JOBS = yaml.safe_load(WORKFLOW.read_text())["jobs"]
STEPS = [step for job in JOBS.values() for step in job["steps"]]


@pytest.mark.parametrize("action", INPUTS)
def test_each_action_gets_only_its_inputs(action: str) -> None:
    (step,) = (step for step in STEPS if step.get("uses") == action)
    assert step["with"].keys() <= INPUTS[action]
    assert step["with"].keys() >= COMMON
