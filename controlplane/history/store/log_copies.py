"""Copies the log of a branch's chains to the store, in pieces, as it is flushed.

While a compute runs, the history round sees every five seconds how far its log is flushed; the part
that the chain on disk does not have yet is read from the compute's own log. A piece lies within one
segment and begins where the one before ends. The chain in the store ends, and another one begins,
if the log on disk does not continue the log in the store.

One look (`copy_logs_to_store`) copies the log of all branches that have written any, and tells in
events which copies are behind, and which have caught up.
"""

import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from controlplane import clock
from controlplane.compute import compute
from controlplane.compute.data.branch_data import branch_dir
from controlplane.compute.host.tree import SEGMENT_SIZE
from controlplane.compute.host.wal import matches_checksum, segment_name, segment_start
from controlplane.events.changes import history_copy_behind, history_copy_caught_up
from controlplane.events.recording import record
from controlplane.history.keeping import changed_histories, uncopied_branches
from controlplane.history.local.chain import Base, Chain, chains_of, holding_history
from controlplane.history.local.pulling import (
    Flushed,
    LogLost,
    flushed_logs,
    read_flushed,
    read_timeline,
)
from controlplane.history.store.copier import Copier, Copies, id_of, new_id, publish, stored_chain
from controlplane.history.store.host_copies import Sign, store_sign
from controlplane.history.store.layout import BranchList, StoredChain, piece_name
from controlplane.history.store_status import BEHIND_AFTER, state
from controlplane.models import Branch
from controlplane.operations.locks import apart, locked_project

# Bytes of log after which the list is written, if there is more to copy: it then counts.
LOG_BYTES_PER_LIST = 256 << 20
# Seconds to wait for the history's lock. Who holds it for longer copies a base.
LOCK_TIMEOUT = 2.0
# Branches are copied side by side, as most of the time is spent waiting for the store.
MAX_CONCURRENT_COPIES = 8
# The branches of which an event has told that they are behind.
_told: set[str] = set()
# How far the log of each branch was flushed when it was last copied, and the host's last sign.
_seen: dict[str, int] = {}
_sign: Sign | None = None


class LogDamaged(Exception):
    """The log on disk is not what was copied there; the message says where."""


def copy_logs_to_store(copier: Copier) -> None:
    """Copy the log that was flushed since the last look, and give the host's sign."""
    global _sign
    while changed_histories:
        copier.logs_due.add(changed_histories.pop())
    for branch_id, flushed in list(flushed_logs.items()):
        if _seen.get(branch_id) != flushed.lsn:
            copier.logs_due.add(branch_id)
    due = sorted(copier.logs_due)
    projects = dict(Branch.objects.filter(id__in=due).values_list("id", "project_id"))
    with ThreadPoolExecutor(MAX_CONCURRENT_COPIES, thread_name_prefix="store-log") as threads:
        copied = threads.map(partial(_copy, copier, projects), due)
        for branch_id, branch in zip(due, copied, strict=True):
            if branch is not None:
                copier.attempt(f"row of {branch_id}", partial(publish, branch))
            elif branch_id not in projects or not branch_dir(branch_id).exists():
                copier.logs_due.discard(branch_id)
                state.behind.pop(branch_id, None)
    note_behind()
    copies, working = copier.copies, compute.working_branches()
    uncopied = {one for one in uncopied_branches.copy() if branch_dir(one).exists()}
    behind = {*copier.data_behind, *state.behind, *uncopied}
    given = copier.attempt("sign", lambda: store_sign(copies, _sign, _seen, behind, working))
    _sign = given or _sign


def _copy(copier: Copier, projects: Mapping[str, str], branch_id: str) -> BranchList | None:
    """Copy the branch's log. None if that fails, or if there is no such branch any more."""
    if branch_id not in projects or not branch_dir(branch_id).exists():
        return None
    flushed = flushed_logs.get(branch_id)
    found = copier.attempt(f"log of {branch_id}", partial(_copy_log, copier, projects, branch_id))
    branch, behind = found or (None, True)
    if branch is None or behind:
        state.behind.setdefault(branch_id, clock.now())
        return branch
    copier.logs_due.discard(branch_id)
    copier.bases_due.add(branch_id)
    if flushed:
        _seen[branch_id] = flushed.lsn
    if not branch.chains or branch.chains[-1].copied_at:
        # Of a branch whose history does not go on, the log is not the newest.
        if branch_id not in copier.data_behind:
            state.behind.pop(branch_id, None)
    else:
        # The log cannot be used before a base is there.
        state.behind.setdefault(branch_id, clock.now())
    return branch


def _copy_log(
    copier: Copier, projects: Mapping[str, str], branch_id: str
) -> tuple[BranchList, bool]:
    branch = copy_log(copier.copies, branch_id, projects[branch_id])
    return branch, is_behind(branch, branch_id)


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


def copy_log(copies: Copies, branch_id: str, project_id: str) -> BranchList:
    """Copy what the store does not have yet of the branch's log. Returns the store's list.

    Raises StoreFails, Damaged, WrongKey, LogDamaged, LogLost, LockTimeout, OSError.
    """
    with copies.holding(branch_id) as branch:
        before = branch.as_json()
        branch.project_id, branch.gone_at = project_id, None
        chains = chains_of(branch_id)
        for chain in chains:
            is_last = chain is chains[-1]
            stored = _continued(copies, branch, chain, is_last=is_last)
            if stored is not None:
                _copy_chain(copies, branch, chain, stored)
        if branch.as_json() != before:
            copies.write(branch)
        return branch


def is_behind(branch: BranchList, branch_id: str) -> bool:
    """Whether the disk has log of the branch that the store does not have."""
    chains = chains_of(branch_id)
    if not chains:
        return False
    stored = stored_chain(branch, chains[-1])
    return stored is None or stored.end < _known_end(chains[-1], branch_id)


def _continued(
    copies: Copies, branch: BranchList, chain: Chain, *, is_last: bool
) -> StoredChain | None:
    """The chain in the store that the chain on disk continues. Only the last chain is begun there:
    what ended before has been replaced since."""
    stored = stored_chain(branch, chain)
    if stored is not None and stored.id not in copies.checked:
        if _is_same_log(branch.branch_id, chain, stored):
            copies.checked.add(stored.id)
        else:
            stored = None
    if stored is not None and not _has_log_from(chain, stored.end):
        stored = None
    if stored is None and is_last and (bases := chain.bases()):
        stored = _begun(chain, bases[-1])
        branch.chains.append(stored)
        copies.checked.add(stored.id)
    return stored


def _begun(chain: Chain, base: Base) -> StoredChain:
    start = segment_start(base.redo)
    return StoredChain(
        id=new_id(chain),
        number=chain.number,
        system_id=chain.system_id,
        timeline=chain.timeline,
        start=start,
        end=start,
    )


def _copy_chain(copies: Copies, branch: BranchList, chain: Chain, stored: StoredChain) -> None:
    branch_id, copied = branch.branch_id, 0
    if stored.ended_at is not None and stored.end >= chain.copied:
        return
    flushed, begin = _flushed_log(chain, branch_id), stored.end
    end = _known_end(chain, branch_id)
    while stored.end < end:
        with holding_history(branch_id, timeout=LOCK_TIMEOUT):
            if id_of(chain) != stored.id:
                return
            piece = _read(chain, branch_id, stored.end, end)
        name = piece_name(copies.folder(branch_id), stored, stored.end, stored.end + len(piece))
        copies.store.put(name, piece)
        stored.end += len(piece)
        stored.tail, stored.tail_size = zlib.crc32(piece), len(piece)
        copied += len(piece)
        if copied >= LOG_BYTES_PER_LIST:
            copies.write(branch)
            copied = 0
    if stored.timeline > 1 and not stored.timeline_file:
        stored.timeline_file = read_timeline(chain)
    stored.ended_at = chain.ended_at
    # The chain's own time is not used: on disk it has only finished segments while a compute runs.
    is_newer = stored.at is None or stored.end > begin
    if flushed is not None and is_newer and stored.end >= flushed.lsn:
        stored.at = flushed.at


def _read(chain: Chain, branch_id: str, start: int, end: int) -> bytes:
    """The log from `start` to the end of its segment, or to `end`."""
    stop = min(segment_start(start) + SEGMENT_SIZE, end)
    if start >= chain.copied:
        return read_flushed(chain, branch_id, start, stop)
    stop = min(stop, chain.copied)
    segment = chain.log / segment_name(chain.timeline, start)
    if not matches_checksum(segment):
        raise LogDamaged(f"the segment {segment.name} is not what was copied")
    return _bytes_of(segment, start, stop)


def _bytes_of(segment: Path, start: int, stop: int) -> bytes:
    with segment.open("rb") as file:
        file.seek(start % SEGMENT_SIZE)
        return file.read(stop - start)


def _is_same_log(branch_id: str, chain: Chain, stored: StoredChain) -> bool:
    """Whether the last piece in the store is also on disk. It is not if the state directory was
    taken back to an earlier state, as by a snapshot of its disk."""
    if stored.end == stored.start:
        return True
    start = stored.end - stored.tail_size
    try:
        with holding_history(branch_id, timeout=LOCK_TIMEOUT):
            if stored.end <= chain.copied:
                segment = chain.log / segment_name(chain.timeline, start)
                found = _bytes_of(segment, start, stored.end)
            else:
                found = read_flushed(chain, branch_id, start, stored.end)
    except (FileNotFoundError, LogLost):
        return False
    return zlib.crc32(found) == stored.tail


def _has_log_from(chain: Chain, lsn: int) -> bool:
    """Whether the log from the position on can still be read: that of the chain is removed when it
    is old, or when the disk is full, whether or not it was copied."""
    if lsn >= chain.copied:
        return True
    return (chain.log / segment_name(chain.timeline, lsn)).exists()


def _flushed_log(chain: Chain, branch_id: str) -> Flushed | None:
    found = flushed_logs.get(branch_id)
    return found if found and found.chain == chain.number else None


def _known_end(chain: Chain, branch_id: str) -> int:
    flushed = _flushed_log(chain, branch_id) if chain.ended_at is None else None
    return max(chain.copied, flushed.lsn if flushed else 0)
