"""Moves a project to another host of its region: the work of `move_project`, on the host that the
project leaves.

The operation holds its whole project. All branches are sent to the other host's worker, which makes
each of them durably in its place there (`receiving_moves`). Those whose compute runs are followed
until it is stopped (`live_moves`). The transaction that ends the operation also gives the project
to the other host (`moves`): that is the one switch. Before it, the project lives here; a
retry begins anew, and a cancel has the other host remove what it has. After it, the project lives
there, and this host's data is a leftover. A round of each host removes leftovers (`moved_away`).
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial

from controlplane.compute import compute
from controlplane.compute.data.branch_data import NoSuchBranchData, data_dir
from controlplane.compute.host.patience import OutOfPatience, patience
from controlplane.compute.host.steps import step
from controlplane.compute.host.tree import TreeUntrusted
from controlplane.fleet.messages import Link, LinkBroken, MoveRefused, host_links
from controlplane.fleet.moves import give_to_host
from controlplane.fleet.moving.live_moves import (
    Streams,
    forget_clones,
    have_them_started,
    mark,
    run_again,
    running_endpoints,
)
from controlplane.fleet.moving.sending import SentBlocks, send_branch, size_of
from controlplane.history.local.chain import holding_history
from controlplane.models import Branch, BranchState, Host, Operation
from controlplane.operations.actions.computes import StartRefused
from controlplane.operations.actions.handlers import Attempt
from controlplane.operations.actions.words import failure_message
from controlplane.operations.details import Details, MoveProjectDetails

log = logging.getLogger(__name__)

# Problems that a retry does not solve.
FINAL = (MoveRefused, NoSuchBranchData, TreeUntrusted)
# Seconds that the other host gets to remove what it has, before a cancelled move ends without it.
DISCARD_TIMEOUT = 10.0


def move_project(attempt: Attempt) -> None:
    """Copy all branches of the project to the other host, and stop its computes. Raises
    StartRefused, LinkBroken, LogCutOff, psycopg.Error, OSError."""
    operation, details = attempt.operation, attempt.details
    assert isinstance(details, MoveProjectDetails)
    branches = _branches_of(operation)
    # An earlier attempt may have stopped some computes.
    run_again(operation)
    forget_clones(branches)
    try:
        _send(operation, details, branches)
    except Exception as error:
        run_again(operation)
        if isinstance(error, FINAL):
            raise StartRefused(failure_message(error)) from error
        raise


def end_move(operation: Operation, details: Details, now: datetime) -> None:
    """Give the project to the host that has it now. Raises HostNotReady."""
    assert isinstance(details, MoveProjectDetails)
    give_to_host(operation.project, details.to, served_by=details.received_by, by=operation)
    have_them_started(operation, now)


def undo_move(operation: Operation) -> None:
    """Run the computes here again that the move has stopped, and have the other host remove what it
    has of the project. If it cannot be reached, its own round does that once the operation has
    ended."""
    run_again(operation)
    forget_clones(_branches_of(operation))
    details = MoveProjectDetails.from_json(operation.details)
    host = Host.objects.filter(id=details.to).first()
    if host is None:
        return
    try:
        with patience(DISCARD_TIMEOUT), closing(Link(host_links().connect(host))) as link:
            link.send(discard=str(operation.id))
            link.receive()
    except (LinkBroken, MoveRefused, OutOfPatience, OSError) as error:
        fields = {"host": host.id, "error": str(error)}
        log.warning("what was moved is not removed yet", extra=fields)


def _branches_of(operation: Operation) -> list[str]:
    """The ids of the branches with data, hidden ones too, each after its parent."""
    found = Branch.objects.filter(
        project_id=operation.project_id, deleted_at=None, current_state=BranchState.READY
    )
    return list(found.order_by("created_at", "id").values_list("id", flat=True))


@contextmanager
def _about(branch_id: str) -> Iterator[None]:
    """Name the branch in the reason for which the project cannot be moved. Raises StartRefused."""
    try:
        yield
    except FINAL as error:
        raise StartRefused(f"the branch {branch_id}: {failure_message(error)}") from error


def _send(operation: Operation, details: MoveProjectDetails, branches: Sequence[str]) -> None:
    """Send the branches, and note which state directory has them."""
    running = running_endpoints(operation)
    for branch_id in branches:
        if not data_dir(branch_id).exists():
            raise NoSuchBranchData(f"the branch {branch_id} has no data")
        if branch_id not in running:
            compute.stop(branch_id)
    host = Host.objects.get(id=details.to)
    with ExitStack() as held:
        with step("connecting"):
            link = held.enter_context(closing(Link(host_links().connect(host))))
            link.send(move=str(operation.id))
            details = replace(details, received_by=str(link.receive()["state_id"]))
        for branch_id in sorted(branches):
            held.enter_context(holding_history(branch_id))
        sent, streams = SentBlocks(), held.enter_context(closing(Streams(link)))
        of_bytes = 0
        for branch_id in branches:
            with _about(branch_id):
                of_bytes += size_of(branch_id)
        with step("copying", of_bytes=of_bytes):
            for branch_id in branches:
                with _about(branch_id):
                    if endpoint := running.get(branch_id):
                        streams.send(endpoint, sent)
                    else:
                        send_branch(link, branch_id, sent, between=streams.look)
        if running:
            streams.hand_over(partial(mark, operation, details))
        else:
            link.send(done=True)
            link.flush()
            mark(operation, details)
