"""`/projects/{project_id}/branches` and `…/branch_anonymized`, with what masked branches have."""

from typing import Any

from ninja import Body, Query

from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.fields import Text
from controlplane.api.http.pagination import BranchesQuery, DeletionQuery
from controlplane.api.http.routing import Router
from controlplane.api.projects import connection_details
from controlplane.api.requests.branches import (
    CreateAnonymizedBranch,
    CreateBranch,
    MaskingRules,
    RestoreBranch,
    UpdateBranch,
)
from controlplane.api.responses.branches import (
    AnnotatedBranch,
    Annotation,
    AnonymizedStatus,
    Attestation,
    BranchAndOperations,
    BranchCount,
    Branches,
    CreatedBranch,
    annotations_of,
)
from controlplane.api.responses.endpoints import Endpoints
from controlplane.models import Branch
from controlplane.services import branch_pages, branches, connections, endpoints, masking, restoring

router = Router(tags=["branches"])

BRANCHES = "/projects/{project_id}/branches"
BRANCH = BRANCHES + "/{branch_id}"


@router.get(BRANCHES, response=Branches)
def list_project_branches(
    request: AuthenticatedRequest, project_id: str, query: Query[BranchesQuery]
) -> dict[str, Any]:
    """Lists the project's branches, sorted and page by page. `pagination.next` is the `cursor` of
    the next page; it is absent on the last page."""
    page = branch_pages.list_branches(request.auth, project_id, query.filters())
    return {**page, "annotations": annotations_of(page["branches"])}


@router.get(BRANCHES + "/count", response=BranchCount)
def count_project_branches(
    request: AuthenticatedRequest, project_id: str, search: Text = ""
) -> dict[str, Any]:
    """Counts the project's branches, or those that match `search`."""
    return {"count": branch_pages.count_branches(request.auth, project_id, search=search)}


@router.post(BRANCHES, response={201: CreatedBranch})
def create_project_branch(
    request: AuthenticatedRequest, project_id: str, body: Body[CreateBranch | None] = None
) -> tuple[int, dict[str, Any]]:
    """Creates a branch with everything that is committed on its parent, including the roles, their
    passwords and the databases. If the parent is protected, the roles get new passwords, which the
    response contains. The parent is the default branch unless the request names another one. The
    branch gets an endpoint if `endpoints` asks for one. Without a body, defaults are used for all
    fields."""
    spec = (body or CreateBranch()).spec()
    return 201, _created(branches.create_branch(request.auth, project_id, spec))


def _created(created: branches.NewBranch) -> dict[str, Any]:
    """The response to a request that has created a branch."""
    connection = connections.connection_to_new(created)
    uris = [connection_details(connection)] if connection else None
    return {**vars(created), "connection_uris": uris}


@router.get(BRANCH, response=AnnotatedBranch)
def get_project_branch(
    request: AuthenticatedRequest, project_id: str, branch_id: str
) -> dict[str, Any]:
    """Returns the branch. `pending_state` is present while an operation is changing its state."""
    branch = branches.get_branch(request.auth, project_id, branch_id)
    return {"branch": branch, "annotation": Annotation.of(branch)}


@router.patch(BRANCH, response=BranchAndOperations)
def update_project_branch(
    request: AuthenticatedRequest, project_id: str, branch_id: str, body: UpdateBranch
) -> dict[str, Any]:
    """Changes the fields that are sent. Other fields keep their values."""
    changes = body.branch.changes()
    return _without_operations(branches.update_branch(request.auth, project_id, branch_id, changes))


@router.delete(BRANCH, response=BranchAndOperations)
def delete_project_branch(
    request: AuthenticatedRequest, project_id: str, branch_id: str, query: Query[DeletionQuery]
) -> dict[str, Any]:
    """Deletes the branch permanently, with its data and its endpoint. All of it is gone once the
    operations have finished. Refused for the default branch, for a protected branch and for a
    branch with children."""
    branch, operations = branches.delete_branch(request.auth, project_id, branch_id)
    return {"branch": branch, "operations": operations}


@router.post(BRANCH + "/set_as_default", response=BranchAndOperations)
def set_default_project_branch(
    request: AuthenticatedRequest, project_id: str, branch_id: str
) -> dict[str, Any]:
    """Makes this the project's default branch, which is used where a request names no branch."""
    return _without_operations(branches.set_default_branch(request.auth, project_id, branch_id))


@router.post(BRANCH + "/set_as_primary", response=BranchAndOperations)
def set_primary_project_branch(
    request: AuthenticatedRequest, project_id: str, branch_id: str
) -> dict[str, Any]:
    """The older name of `set_as_default`, with the same effect."""
    return set_default_project_branch(request, project_id, branch_id)


@router.post(
    BRANCH + "/restore",
    response=BranchAndOperations,
    summary="Restore a branch",
    description="Replaces the branch's state by the present state of another branch of the "
    "project, including its roles, databases and passwords. A restore from the "
    "parent is a reset. The branch keeps its id, name and endpoint; clients are "
    "disconnected.",
)
def restore_project_branch(
    request: AuthenticatedRequest, project_id: str, branch_id: str, body: RestoreBranch
) -> dict[str, Any]:
    branch, operations = restoring.restore_branch(request.auth, project_id, branch_id, body.spec())
    return {"branch": branch, "operations": operations}


@router.get(BRANCH + "/endpoints", response=Endpoints)
def list_project_branch_endpoints(
    request: AuthenticatedRequest, project_id: str, branch_id: str
) -> dict[str, Any]:
    """Lists the branch's endpoints. A branch has at most one."""
    found = endpoints.list_endpoints(request.auth, project_id, branch_id=branch_id)
    return {"endpoints": found}


def _without_operations(branch: Branch) -> dict[str, Any]:
    """The response to a change that needs no operation."""
    return {"branch": branch, "operations": []}


@router.post("/projects/{project_id}/branch_anonymized", response={201: CreatedBranch})
def create_project_branch_anonymized(
    request: AuthenticatedRequest, project_id: str, body: CreateAnonymizedBranch
) -> tuple[int, dict[str, Any]]:
    """Creates a branch whose data is a copy of its parent's with the values masked that the rules
    name. Nobody can connect to it before that is done and its values were scanned. Its roles have
    new passwords. Without `start_anonymization` it has no data yet."""
    spec = body.spec()
    masking.check_rules(spec.masking_rules or ())
    return 201, _created(branches.create_branch(request.auth, project_id, spec))


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
    return masking.anonymize(request.auth, project_id, branch_id)


@router.get(BRANCH + "/anonymized_status", response=AnonymizedStatus)
def get_anonymized_branch_status(
    request: AuthenticatedRequest, project_id: str, branch_id: str
) -> dict[str, Any]:
    """Returns whether the branch is masked, and how its last anonymization ended."""
    return masking.get_status(request.auth, project_id, branch_id)


@router.get(BRANCH + "/attestation", response=Attestation)
def get_attestation(
    request: AuthenticatedRequest, project_id: str, branch_id: str
) -> dict[str, Any]:
    """Returns what was masked in the data of a branch and what the scan of all columns found,
    signed with the project's key. `verify_attestation` checks it."""
    return {"attestation": masking.get_attestation(request.auth, project_id, branch_id)}
