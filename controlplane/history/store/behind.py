"""Tells in events which branches' copies in the store are behind, and which have caught up."""

from controlplane import clock
from controlplane.events.changes import history_copy_behind, history_copy_caught_up
from controlplane.events.recording import record
from controlplane.history.store_status import BEHIND_AFTER, state
from controlplane.models import Branch
from controlplane.operations.locks import apart, locked_project

# The branches of which an event has told that they are behind.
_told: set[str] = set()


def note_behind() -> None:
    """Record an event for each branch that is behind for too long, and for each that no longer
    is."""
    limit = clock.now() - BEHIND_AFTER
    behind = {branch_id for branch_id, since in list(state.behind.items()) if since < limit}
    for branch_id in behind ^ _told:
        branch = Branch.objects.filter(id=branch_id, deleted_at=None).first()
        if branch is None:
            _told.discard(branch_id)
            continue
        tells, of = history_copy_behind, branch.project_id
        if branch_id in _told:
            tells = history_copy_caught_up
        with apart(of), locked_project(of) as project:
            record(tells(project, branch))
            _told.symmetric_difference_update([branch_id])
