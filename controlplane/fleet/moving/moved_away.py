"""Removes from this host what it still has of projects that live on another one: what a finished
move has left on the host that the project came from, and a move that failed or was cancelled on the
host that it was to go to."""

import logging
from contextlib import suppress
from pathlib import Path

from django.conf import settings

from controlplane.compute.data.state_directory import identity
from controlplane.compute.host.filesystem import Listing, LockTimeout, lock_branches
from controlplane.fleet.moves import has_moved
from controlplane.fleet.moving.receiving import remove_received
from controlplane.history.keeping import changed_histories
from controlplane.models import UNFINISHED, Action, Branch, Host, Operation, OperationStatus
from controlplane.operations.locks import apart, locked_project
from controlplane.operations.own_host import is_own

log = logging.getLogger(__name__)

# The branches on the disk that were found to be this host's.
_own: set[str] = set()
# Of the directory of branches: its names, and those at the last look, if each was this host's then.
_listing = Listing()
_looked_at: frozenset[str] | None = None


def remove_moved_away(host: Host) -> None:
    """Look at the branches on the disk that were not found to be this host's before."""
    global _looked_at
    if has_moved.is_set():
        has_moved.clear()
        _own.clear()
        _looked_at = None
    names = _listing.names(Path(settings.STATE_DIR) / "branches")
    if names is _looked_at:
        return
    on_disk = {one.lstrip(".").partition(".")[0] for one in names if "br-" in one}
    _own.intersection_update(on_disk)
    _looked_at = names if on_disk == _own else None
    new = on_disk - _own
    if not new:
        return
    hosts = dict(Branch.objects.filter(id__in=new).values_list("id", "project__host_id"))
    found = {branch_id for branch_id, living_on in hosts.items() if living_on == host.id}
    _own.update(found)
    # What has come from another host has no copy in this host's part of the store yet.
    changed_histories.update(found)
    for branch_id, living_on in hosts.items():
        if living_on != host.id:
            with suppress(LockTimeout), apart(branch_id):
                _remove(branch_id, host.id)


def _remove(branch_id: str, host_id: str) -> None:
    """Remove the branch, unless it may be needed here. Raises LockTimeout."""
    with lock_branches(branch_id, timeout=0):
        branch = Branch.objects.get(id=branch_id)
        with locked_project(branch.project_id) as project:
            if is_own(project.host) or not has_moved_away(branch, host_id):
                return
        # From here on only a new move could bring the branch here, and it would need its lock.
        remove_received(branch_id)
    log.info("moved branch removed", extra={"branch": branch_id})


def has_moved_away(branch: Branch, host_id: str) -> bool:
    """Whether the branch's project has left this host by a move, which has ended. If the host was
    lost instead, its data may be newer than what another host has restored from the store: it stays
    for the operator, also when the project moves on, until a move has replaced it here."""
    of_project = Operation.objects.filter(project_id=branch.project_id).order_by("-created_at")
    moves = of_project.filter(action=Action.MOVE_PROJECT)
    last = moves.first()
    if last is None or last.status in UNFINISHED:
        return False
    if identity() not in branch.copied_by:
        return True
    restores = of_project.filter(action=Action.RESTORE_FROM_STORE, branch=branch)
    loss = restores.filter(details__lost_host=host_id).first()
    came = moves.filter(status=OperationStatus.FINISHED, details__to=host_id)
    return loss is not None and came.filter(created_at__gt=loss.created_at).exists()
