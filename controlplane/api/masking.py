"""`…/branch_anonymized` and what is below a masked branch: rules, state, attestation."""

from typing import Any

from controlplane.api.branches import created_branch
from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.routing import Router
from controlplane.api.requests.masking import CreateAnonymizedBranch, MaskingRules
from controlplane.api.responses.branches import CreatedBranch
from controlplane.api.responses.masking import AnonymizedStatus, Attestation, status_of
from controlplane.services import branches, masking

router = Router(tags=["branches"])

BRANCH = "/projects/{project_id}/branches/{branch_id}"


@router.post("/projects/{project_id}/branch_anonymized", response={201: CreatedBranch})
def create_project_branch_anonymized(
    request: AuthenticatedRequest, project_id: str, body: CreateAnonymizedBranch
) -> tuple[int, dict[str, Any]]:
    """Creates a branch whose data is a copy of its parent's with the values masked that the rules
    name. Nobody can connect to it before that is done and its values were scanned. Its roles have
    new passwords. Without `start_anonymization` it has no data yet."""
    spec = body.spec()
    masking.check_rules(spec.masking_rules or ())
    return 201, created_branch(branches.create_branch(request.auth, project_id, spec))


@router.get(BRANCH + "/masking_rules", response=MaskingRules)
def get_masking_rules(
    request: AuthenticatedRequest, project_id: str, branch_id: str
) -> dict[str, Any]:
    """Returns the masking rules of an anonymized branch."""
    return {"masking_rules": masking.get_rules(request.auth, project_id, branch_id)}


@router.patch(BRANCH + "/masking_rules", response=MaskingRules)
def update_masking_rules(
    request: AuthenticatedRequest, project_id: str, branch_id: str, body: MaskingRules
) -> dict[str, Any]:
    """Replaces all masking rules of an anonymized branch. They act at the next anonymization."""
    rules = masking.replace_rules(request.auth, project_id, branch_id, body.rules())
    return {"masking_rules": rules}


@router.post(BRANCH + "/anonymize", response=AnonymizedStatus)
def start_anonymization(
    request: AuthenticatedRequest, project_id: str, branch_id: str
) -> dict[str, Any]:
    """Makes the data of an anonymized branch from its parent's present data, by its masking rules.
    Data that it has is replaced, and its clients are disconnected."""
    return status_of(masking.anonymize(request.auth, project_id, branch_id), branch_id)


@router.get(BRANCH + "/anonymized_status", response=AnonymizedStatus)
def get_anonymized_branch_status(
    request: AuthenticatedRequest, project_id: str, branch_id: str
) -> dict[str, Any]:
    """Returns whether the branch is masked, and how its last anonymization ended."""
    return status_of(masking.get_status(request.auth, project_id, branch_id), branch_id)


@router.get(BRANCH + "/attestation", response=Attestation)
def get_attestation(
    request: AuthenticatedRequest, project_id: str, branch_id: str
) -> dict[str, Any]:
    """Returns what was masked in the data of a branch and what the scan of all columns found,
    signed with the project's key. `verify_attestation` checks it."""
    return {"attestation": masking.get_attestation(request.auth, project_id, branch_id)}
