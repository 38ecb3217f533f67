"""`/projects/{project_id}/snapshots`, and taking a snapshot of a branch."""

from typing import Any

from ninja import Body, Query

from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.routing import Router
from controlplane.api.requests.snapshots import (
    CreateSnapshotQuery,
    FinalizeRestore,
    NewSnapshot,
    RestoreSnapshot,
    RestoreSnapshotQuery,
    UpdateSnapshot,
    snapshot_spec,
)
from controlplane.api.responses.branches import (
    BranchAndOperations,
    OneSnapshot,
    SnapshotAndOperations,
    Snapshots,
)
from controlplane.api.responses.operations import OperationsOut
from controlplane.services import restoring, snapshots
from controlplane.services.snapshots import SnapshotRestore

router = Router(tags=["snapshots"])

SNAPSHOTS = "/projects/{project_id}/snapshots"
SNAPSHOT = SNAPSHOTS + "/{snapshot_id}"


@router.post(
    "/projects/{project_id}/branches/{branch_id}/snapshot",
    response=SnapshotAndOperations,
    summary="Take a snapshot of a branch",
    description="The snapshot contains everything that is committed on the branch when it is "
    "copied: data, roles, databases and passwords. Values in the body take "
    "precedence over the query.",
)
def create_snapshot(
    request: AuthenticatedRequest,
    project_id: str,
    branch_id: str,
    query: Query[CreateSnapshotQuery],
    body: Body[NewSnapshot | None] = None,
) -> dict[str, Any]:
    snapshot, operations = snapshots.create_snapshot(
        request.auth, project_id, branch_id, snapshot_spec(query, body)
    )
    return {"snapshot": snapshot, "operations": operations}


@router.get(
    SNAPSHOTS,
    response=Snapshots,
    summary="List a project's snapshots",
    description="The newest first.",
)
def list_snapshots(request: AuthenticatedRequest, project_id: str) -> dict[str, Any]:
    return {"snapshots": snapshots.list_snapshots(request.auth, project_id)}


@router.patch(
    SNAPSHOT,
    response=OneSnapshot,
    summary="Change a snapshot",
    description="Its name, and when it is deleted automatically: null for never.",
)
def update_snapshot(
    request: AuthenticatedRequest, project_id: str, snapshot_id: str, body: UpdateSnapshot
) -> dict[str, Any]:
    changes = body.snapshot.changes()
    return {"snapshot": snapshots.update_snapshot(request.auth, project_id, snapshot_id, changes)}


@router.delete(
    SNAPSHOT,
    response={202: OperationsOut},
    summary="Delete a snapshot",
    description="The snapshot is deleted immediately; the operation removes its data.",
)
def delete_snapshot(
    request: AuthenticatedRequest, project_id: str, snapshot_id: str
) -> tuple[int, dict[str, Any]]:
    operations = snapshots.delete_snapshot(request.auth, project_id, snapshot_id)
    return 202, {"operations": operations}


@router.post(
    SNAPSHOT + "/restore",
    response=BranchAndOperations,
    summary="Restore a snapshot",
    description="Creates a new branch without an endpoint, which can be looked at and then put in "
    "another one's place by `finalize_restore`. With `finalize_restore` in this request and no "
    "`name`, replaces a branch's data instead: the branch keeps its id, name and endpoint, and its "
    "previous data and its children move to a new branch `<name>_old_<time>`.",
)
def restore_snapshot(
    request: AuthenticatedRequest,
    project_id: str,
    snapshot_id: str,
    query: Query[RestoreSnapshotQuery],
    body: Body[RestoreSnapshot | None] = None,
) -> dict[str, Any]:
    wanted = body.wanted(name=query.name) if body else SnapshotRestore(name=query.name)
    branch, operations = snapshots.restore_snapshot(request.auth, project_id, snapshot_id, wanted)
    return {"branch": branch, "operations": operations}


@router.post(
    "/projects/{project_id}/branches/{branch_id}/finalize_restore",
    response=BranchAndOperations,
    summary="Finalize a restore",
    description="Puts a branch that was restored from a snapshot in the place of the branch that "
    "it was restored for: it gets that one's name and endpoint, and is the default branch if that "
    "one was. The other branch keeps its id, data and children under another name. Clients are "
    "disconnected. If both have an endpoint, that of the restored branch is deleted.",
)
def finalize_restore_branch(
    request: AuthenticatedRequest,
    project_id: str,
    branch_id: str,
    body: Body[FinalizeRestore | None] = None,
) -> dict[str, Any]:
    branch, operations = restoring.finalize_restore(
        request.auth, project_id, branch_id, name=body.name if body else None
    )
    return {"branch": branch, "operations": operations}
