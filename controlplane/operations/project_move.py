"""Moves a project to another host of its region: the work of `move_project`, on the host that the
project leaves.

The operation holds its whole project, and its endpoints were suspended by the operations before it
in its chain. All branches are sent to the other host's worker, which makes each of them durably in
its place there (`receiving_moves`). The transaction that ends the operation also gives the project
to the other host (`project_host`): that is the one switch. Before it, the project lives here; a
retry begins anew, and a cancel has the other host remove what it has. After it, the project lives
there, and this host's data is a leftover. A round of each host removes leftovers (`moved_away`).
"""

import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

from controlplane.compute import compute
from controlplane.compute.branch_data import NoSuchBranchData, data_dir
from controlplane.compute.history.chain import holding_history
from controlplane.compute.moving.links import Link, LinkBroken, MoveRefused
from controlplane.compute.moving.sending import send_branch, size_of
from controlplane.compute.moving.sharing import SentBlocks
from controlplane.compute.patience import Cancelled, patience
from controlplane.compute.steps import step
from controlplane.compute.tree import TreeUntrusted
from controlplane.models import Branch, BranchState, Host, Operation, OperationStatus
from controlplane.operations.details import MoveProjectDetails
from controlplane.operations.locks import locked_project
from controlplane.operations.running import Refused
from controlplane.operations.words import words_of
from controlplane.operations.work import Attempt

log = logging.getLogger(__name__)

# Problems that a retry does not solve.
FINAL = (MoveRefused, NoSuchBranchData, TreeUntrusted)
# Seconds that the other host gets to remove what it has, before a cancelled move ends without it.
DISCARD_BOUND = 10.0


def _no_connection(host: Host) -> socket.socket:
    raise LinkBroken("this process has no connections to other hosts")


# Opens a connection to the host's worker. Set by the worker: only the layers above know how hosts'
# proxies recognize each other. Raises LinkBroken.
connect: Callable[[Host], socket.socket] = _no_connection


def move_project(attempt: Attempt) -> None:
    """Copy all branches of the project to the other host. Raises Refused, LinkBroken, OSError."""
    operation, details = attempt.operation, attempt.details
    assert isinstance(details, MoveProjectDetails)
    branches = _branches_of(operation)
    try:
        received_by = _send(operation, details, branches)
    except FINAL as error:
        raise Refused(words_of(error)) from error
    _mark(operation, replace(details, received_by=received_by))


def undo_move(operation: Operation) -> None:
    """Have the other host remove what it has of the project. If it cannot be reached, its own round
    does that once the operation has ended."""
    details = MoveProjectDetails.from_json(operation.details)
    host = Host.objects.filter(id=details.to).first()
    if host is None:
        return
    try:
        with patience(DISCARD_BOUND), closing(Link(connect(host))) as link:
            link.tell(discard=str(operation.id))
            link.hear()
    except (LinkBroken, MoveRefused, OSError) as error:
        fields = {"host": host.id, "error": str(error)}
        log.warning("what was moved is not removed yet", extra=fields)


def _branches_of(operation: Operation) -> list[str]:
    """The ids of the branches with data, hidden ones too, each after its parent."""
    found = Branch.objects.filter(
        project_id=operation.project_id, deleted_at=None, current_state=BranchState.READY
    )
    return list(found.order_by("created_at", "id").values_list("id", flat=True))


def _send(operation: Operation, details: MoveProjectDetails, branches: Sequence[str]) -> str:
    """Send the branches. Returns the identity of the state directory that has them."""
    for branch_id in branches:
        if not data_dir(branch_id).exists():
            raise NoSuchBranchData(f"the branch {branch_id} has no data")
        compute.stop(branch_id)
    host = Host.objects.get(id=details.to)
    with ExitStack() as held:
        with step("connecting"):
            link = held.enter_context(closing(Link(connect(host))))
            link.tell(move=str(operation.id))
            received_by = str(link.hear()["state_id"])
        for branch_id in sorted(branches):
            held.enter_context(holding_history(branch_id))
        sent = SentBlocks()
        with step("copying", of_bytes=sum(map(size_of, branches))):
            for branch_id in branches:
                send_branch(link, branch_id, sent)
        link.tell(done=True)
    return received_by


def _mark(operation: Operation, details: MoveProjectDetails) -> None:
    """Note who has received the branches, for the end of the operation."""
    with locked_project(operation.project_id):
        row = Operation.objects.get(id=operation.id)
        if row.status != OperationStatus.RUNNING:
            raise Cancelled
        row.details = operation.details = details.as_json()
        row.save(update_fields=["details"])
