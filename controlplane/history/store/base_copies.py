"""Copies bases to the store, and the data of branches whose history does not go on; deletes there
what is older than the project's window.

A base is copied when as much log lies behind the last one as the base is large, so that bases
together take no more than the log, or when the last one is older than the window, so that older log
can be deleted.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from controlplane import clock
from controlplane.backup.branch_copy import idle_data, state_of
from controlplane.compute.compute import running_endpoint
from controlplane.compute.data.base_backup import PROCESS_FILES
from controlplane.compute.data.branch_data import data_dir
from controlplane.compute.host.tree import open_directory
from controlplane.compute.host.wal import segment_start
from controlplane.history.local.bases import NOT_IN_A_BASE
from controlplane.history.local.chain import Base, Chain, chains_of, holding_history
from controlplane.history.store.copier import Copies, id_of, stored_chain
from controlplane.history.store.layout import (
    BranchList,
    StoredBase,
    StoredChain,
    StoredData,
    pieces_in,
)
from controlplane.history.store.objects import random_name
from controlplane.history.store.packing import tree_stream
from controlplane.models import Branch

# Bytes of log after which a further base is copied at the earliest: so much is quickly replayed.
MIN_LOG_BYTES_PER_BASE = 128 << 20
LOCK_TIMEOUT = 5.0
# The least time between two copies of the whole data of a branch: it may be suspended often.
MIN_DATA_INTERVAL = timedelta(minutes=5)


def copy_base(copies: Copies, branch_id: str, window: timedelta) -> bool:
    """Copy the newest base of the branch's last chain, if one is due. Returns whether one was.

    Raises StoreFails, Damaged, WrongKey, LockTimeout, OSError.
    """
    chain = next(reversed(chains_of(branch_id)), None)
    if chain is None:
        return False
    with copies.holding(branch_id) as branch:
        stored = stored_chain(branch, chain)
        base = _due(chain, stored, window) if stored else None
    if stored is None or base is None:
        return False
    if base.template:
        name = _template(copies, chain, base)
    else:
        name = f"{copies.folder(branch_id)}/{stored.id}/bases/{base.end:016X}-{random_name()}"
    copies.in_flight.add(name)
    try:
        if not base.template:
            with _base(branch_id, chain, base, stored) as directory:
                copies.store.put(name, tree_stream(directory, skip=NOT_IN_A_BASE))
        with copies.holding(branch_id) as branch:
            return _list_base(copies, branch, chain, StoredBase(base, name))
    finally:
        copies.in_flight.discard(name)


def _list_base(copies: Copies, branch: BranchList, chain: Chain, made: StoredBase) -> bool:
    """Add the base to the list, which the caller holds. Returns False if the chain is gone, or if
    another thread has copied this base or a later one meanwhile."""
    stored = stored_chain(branch, chain)
    if stored is None or any(one.base.end >= made.base.end for one in stored.bases):
        if not made.base.template:
            copies.store.delete([made.name])
        return False
    stored.bases.append(made)
    copies.write(branch)
    return True


def has_data(stored: BranchList, branch: Branch) -> bool:
    """Whether the store has a copy of the branch's data as it is now. Raises OSError."""
    reset_at = branch.last_reset_at
    if stored.data is None or (reset_at is not None and reset_at >= stored.data.at):
        return False
    if branch.hidden and not stored.data.state:
        return True  # copied by an earlier release; nothing writes to snapshots
    with open_directory(data_dir(branch.id)) as directory:
        return stored.data.state == state_of(directory)


def copy_data(copies: Copies, branch: Branch) -> bool:
    """Copy the data of a branch whose history does not go on and whose compute does not run, unless
    the store has it. Returns False if the store does not get it now, because the compute runs or
    because other data of the branch was copied a moment ago.

    Raises DataInUse if it did not stay idle, StoreFails, Damaged, WrongKey, LockTimeout, OSError.
    """
    with copies.holding(branch.id) as stored:
        known = stored.data
        if has_data(stored, branch):
            return True
    at = clock.now()
    name = f"{copies.folder(branch.id)}/data/{at:%Y%m%dT%H%M%S}-{random_name()}"
    if running_endpoint(branch.id) is not None or (known and at - known.at < MIN_DATA_INTERVAL):
        return False
    with idle_data(branch.id) as directory:
        state = state_of(directory)
        copies.store.put(name, tree_stream(directory, skip=PROCESS_FILES))
    with copies.holding(branch.id) as stored:
        stored.project_id, stored.gone_at = branch.project_id, None
        stored.data = StoredData(name, at, state)
        copies.write(stored)
    if known:
        copies.store.delete([known.name])
    return True


def prune(copies: Copies, branch_id: str, window: timedelta) -> None:
    """Delete what no moment within the window needs, and what no list names.

    Raises StoreFails, Damaged, WrongKey.
    """
    before = clock.now() - window
    with copies.holding(branch_id) as branch:
        unchanged = branch.as_json()
        on_disk = {id_of(chain) for chain in chains_of(branch_id)}
        _prune_chains(branch, before, on_disk)
        if not window:
            # The project keeps no history, and nothing off the host.
            branch.chains = [one for one in branch.chains if one.id in on_disk]
            branch.data = None
        if branch.newest is not branch.data:
            branch.data = None
        if branch.as_json() != unchanged:
            copies.write(branch)
            copies.store.delete(_unlisted_objects(copies, branch))


def delete_gone(copies: Copies, branch_id: str, keep_for: timedelta) -> None:
    """Delete all of a branch that is deleted on the host, once it has been found so for `keep_for`.

    Raises StoreFails, Damaged, WrongKey.
    """
    with copies.holding(branch_id) as branch:
        if branch.gone_at is None:
            branch.gone_at = clock.now()
            copies.write(branch)
        if clock.now() - branch.gone_at >= keep_for:
            copies.store.delete(copies.store.names(copies.folder(branch_id)))
            copies.forget(branch_id)


def _due(chain: Chain, stored: StoredChain, window: timedelta) -> Base | None:
    """The base to copy now, if one is due."""
    bases = [one for one in chain.bases() if one.redo >= stored.start]
    if not bases:
        return None
    newest = bases[-1]
    if not stored.bases:
        return newest
    last = stored.bases[-1].base
    if newest.end <= last.end:
        return None
    most_log = max(MIN_LOG_BYTES_PER_BASE, newest.size)
    is_due = stored.end - last.end >= most_log or clock.now() - last.at >= window
    return newest if is_due else None


def _template(copies: Copies, chain: Chain, base: Base) -> str:
    """The object that holds the template, which many branches have as their first base. It is
    copied once."""
    version = base.template
    if version not in copies.templates:
        folder = f"{copies.host}/templates/{version}"
        # Without the key, others may have put something there.
        name = next(filter(copies.store.is_whole, copies.store.names(folder)), None)
        if name is None:
            name = f"{folder}/{random_name()}"
            with open_directory(chain.data_of(base)) as directory:
                copies.store.put(name, tree_stream(directory, skip=NOT_IN_A_BASE))
        copies.templates[version] = name
    return copies.templates[version]


@contextmanager
def _base(branch_id: str, chain: Chain, base: Base, stored: StoredChain) -> Iterator[int]:
    """The base's directory. It may be removed meanwhile: then a file is missing."""
    with holding_history(branch_id, timeout=LOCK_TIMEOUT):
        if id_of(chain) != stored.id:
            raise FileNotFoundError("the chain is gone")
        descriptor = os.open(chain.data_of(base), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _prune_chains(branch: BranchList, before: datetime, on_disk: set[str | None]) -> None:
    newest = branch.newest
    for stored in list(branch.chains):
        over = stored.id not in on_disk or stored.ended_at is not None
        # What has the newest state stays until newer data is there.
        over = over and stored is not newest
        if over and (stored.until is None or stored.until < before):
            branch.chains.remove(stored)
            continue
        older = [one for one in stored.usable_bases if one.base.at <= before]
        if older:
            stored.bases = [one for one in stored.bases if one.base.end >= older[-1].base.end]
            stored.start = max(stored.start, segment_start(older[-1].base.redo))


def _unlisted_objects(copies: Copies, branch: BranchList) -> list[str]:
    """The branch's objects that its list does not name, without the base that another thread is
    storing. The caller holds the list."""
    names = list(copies.store.names(copies.folder(branch.branch_id)))
    kept = {*branch.names, *(base.name for one in branch.chains for base in one.bases)}
    kept |= copies.in_flight
    if branch.data:
        kept.add(branch.data.name)
    for stored in branch.chains:
        log = f"{copies.folder(branch.branch_id)}/{stored.id}/log/"
        pieces = pieces_in(name for name in names if name.startswith(log))
        kept |= {piece.name for piece in pieces if piece.end > stored.start}
    return [name for name in names if name not in kept]
