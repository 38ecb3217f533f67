"""Masked branches, which Neon's API calls anonymized: their rules, their state, and the proof."""

from collections.abc import Mapping, Sequence
from typing import Any

from controlplane import clock
from controlplane.compute.masking.functions import RuleRefused, parse
from controlplane.events.changes import branch_updated
from controlplane.events.recording import record
from controlplane.models import (
    GIVEN_UP,
    UNFINISHED,
    Account,
    Action,
    Branch,
    BranchState,
    Masking,
    Operation,
    Project,
    RequestKind,
)
from controlplane.operations.engine.scheduling import schedule, unfinished
from controlplane.operations.masked_data import count_masked
from controlplane.services.branches import find_branch, refuse_while_busy
from controlplane.services.creation import awaits_masking, creation_steps
from controlplane.services.errors import Locked, NotFound, Unprocessable
from controlplane.services.projects import changing_project, find_project
from controlplane.services.restoring import replace_data


def check_rules(rules: Sequence[Mapping[str, Any]]) -> None:
    """Raise Unprocessable if a rule names a function that is not offered, or a column has two
    rules. Whether the columns exist is found out when the data is masked."""
    seen = set()
    for number, rule in enumerate(rules):
        column = tuple(value for name, value in rule.items() if not name.startswith("masking_"))
        if column in seen:
            raise Unprocessable(
                f"two rules for {'.'.join(column)}", fields=[f"masking_rules.{number}.column_name"]
            )
        seen.add(column)
        if function := rule.get("masking_function"):
            try:
                parse(function)
            except RuleRefused as error:
                field = f"masking_rules.{number}.masking_function"
                raise Unprocessable(str(error), fields=[field]) from error


def get_rules(account: Account, project_id: str, branch_id: str) -> list[dict[str, Any]]:
    """The branch's masking rules. Raises NotFound."""
    _, masking = _find(find_project(account, project_id), branch_id)
    return list(masking.rules)


def replace_rules(
    account: Account, project_id: str, branch_id: str, rules: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Replace the branch's masking rules. They act when the branch's data is made the next time.
    Raises NotFound, Locked, Unprocessable."""
    check_rules(rules)
    with changing_project(account, project_id) as project:
        branch, masking = _find(project, branch_id)
        refuse_while_busy(branch, unfinished(project.id))
        counts = {"masking_rules": {"from": len(masking.rules), "to": len(rules)}}
        masking.rules, masking.updated_at = list(rules), clock.now()
        masking.save(update_fields=["rules", "updated_at"])
        record(branch_updated(project, branch, counts))
    return list(masking.rules)


def anonymize(account: Account, project_id: str, branch_id: str) -> dict[str, Any]:
    """Make the branch's data from its parent's present data, masked; data that it has is replaced.
    Raises NotFound, Conflict, Locked, HostFull, Unprocessable."""
    with changing_project(account, project_id) as project:
        branch, masking = _find(project, branch_id)
        earlier = unfinished(project.id)
        refuse_while_busy(branch, earlier)
        if branch.current_state == BranchState.READY:
            assert branch.parent is not None
            replace_data(project, branch, branch.parent, name=None)
        else:
            steps = creation_steps(branch, earlier, begins_masking=True)
            if not steps:
                raise Locked
            schedule(project, steps, RequestKind.CREATE_BRANCH)
        return _status(branch, masking)


def get_status(account: Account, project_id: str, branch_id: str) -> dict[str, Any]:
    """Raises NotFound."""
    return _status(*_find(find_project(account, project_id), branch_id))


def get_attestation(account: Account, project_id: str, branch_id: str) -> dict[str, Any]:
    """The attestation of the data of a masked branch or of a copy of one. Raises NotFound."""
    branch = find_branch(find_project(account, project_id), branch_id)
    masking = Masking.objects.filter(id=branch.masked_as).first()
    if masking is None or masking.attestation is None or branch.current_state != BranchState.READY:
        raise NotFound("the branch has no masked data, so there is no attestation")
    return dict(masking.attestation)


def _find(project: Project, branch_id: str) -> tuple[Branch, Masking]:
    branch = find_branch(project, branch_id)
    masking = Masking.objects.filter(id=branch.id).first()
    if masking is None:
        raise NotFound(
            "the branch is not an anonymized one; create one with POST "
            f"/projects/{project.id}/branch_anonymized"
        )
    return branch, masking


def _status(branch: Branch, masking: Masking) -> dict[str, Any]:
    """The state of a masked branch and its latest run, as they are answered."""
    runs = Operation.objects.filter(branch=branch, action=Action.CREATE_BRANCH)
    run = runs.order_by("-created_at").first()
    masked = count_masked(masking.attestation) if masking.attestation else 0
    state, message = "anonymized", f"{masked} columns are masked"
    ended_at = run.updated_at if run is not None and run.status not in UNFINISHED else None
    if awaits_masking(branch):
        state, message = "initialized", "It has no data until its anonymization is started."
    elif run is not None and ended_at is None:
        state, message = "anonymizing", "The parent's data is copied, masked and scanned."
    elif run is not None and run.status in GIVEN_UP:
        state, message = "error", run.error or "The anonymization was cancelled."
    return {
        "project_id": branch.project_id,
        "branch_id": branch.id,
        "state": state,
        "status_message": message,
        "created_at": masking.created_at,
        "updated_at": max(masking.updated_at, (run or masking).updated_at),
        "failed_at": ended_at if state == "error" else None,
        "last_run": run
        and {
            "started_at": run.created_at,
            "completed_at": ended_at,
            "masked_columns": masked,
        },
    }
