"""What the store has to do with log that second hosts receive (`fleet.receivers.log_receivers`): it
gets the log that comes before, and a restore adds the received log to what it has."""

import os
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from django.db.models import Q

from controlplane.compute.host.filesystem import LockTimeout
from controlplane.compute.host.steps import step
from controlplane.compute.host.tree import SEGMENT, SEGMENT_SIZE, open_directory
from controlplane.compute.host.wal import (
    PAGE,
    LogUnreadable,
    is_segment_of,
    records_of,
    segment_name,
    segment_start,
    write_sum,
)
from controlplane.fleet.messages import Link, LinkBroken, MoveRefused, host_links
from controlplane.fleet.receivers import log_receivers, receivewal
from controlplane.fleet.receivers.log_receivers import StoredLog
from controlplane.fleet.receivers.receivewal import PARTIAL, opened, segments_in
from controlplane.fleet.receivers.standby import NotAttached
from controlplane.history.local.chain import Chain, chains_of, open_chain_of
from controlplane.history.local.pulling import LogLost
from controlplane.history.store.base_copies import copy_base, has_data
from controlplane.history.store.copier import Copies, publish, stored_chain
from controlplane.history.store.fetching import Fetched
from controlplane.history.store.log_copies import LogDamaged, copy_log, is_behind
from controlplane.history.store.objects import StoreFails
from controlplane.history.store.packing import Damaged, WrongKey
from controlplane.history.store_status import StoreUnusable
from controlplane.models import Branch, Host, LogReceiver

# Resource managers have numbers from 0 on.
NO_MANAGER = -1


def copy_before_receiving(copies: Copies) -> None:
    """Let this process's receivers of log begin where the store ends."""
    log_receivers.copy_to_store = partial(_copy, copies)


def _copy(copies: Copies, branch: Branch) -> StoredLog | None:
    """See `log_receivers.copy_to_store`. Raises NotAttached."""
    try:
        chains = chains_of(branch.id)
        if open_chain_of(chains) is None:
            # What it wrote since its chain has ended is in no log: only a copy of its data has it.
            with copies.holding(branch.id) as stored:
                return StoredLog(0, is_all=True) if has_data(stored, branch) else None
        copied = copy_log(copies, branch.id, branch.project_id)
        chain = stored_chain(copied, chains[-1])
        if chain is not None and not chain.usable_bases:
            window = timedelta(seconds=branch.project.history_retention_seconds)
            copy_base(copies, branch.id, window)
        if chain is None or not chain.usable_bases:
            return None
        # From here on the branch can be restored elsewhere, also if this host is lost at once.
        publish(copied)
        return StoredLog(chain.end, is_all=not is_behind(copied, branch.id))
    except (StoreFails, Damaged, WrongKey) as error:
        raise NotAttached(f"its history cannot be copied to the store: {error}") from error
    except (LogDamaged, LogLost, LockTimeout, OSError) as error:
        raise NotAttached("its history cannot be copied to the store now") from error


def add_received_log(
    branch: Branch, host: Host, fetched: Fetched, place: Path
) -> tuple[Fetched, bool]:
    """Add the log that second hosts have received to what was fetched. Returns it, and whether
    commits waited for the log until the lost host ended, so that it has all of them. Raises
    StoreUnusable if a second host does not answer, OSError."""
    # Without either, it was given up before commits waited for it. Without `attached_at`, they may
    # have waited: its worker has ended before it noted that.
    known = Q(attached_at__isnull=False) | Q(lost_at=None)
    rows = LogReceiver.objects.filter(known, branch=branch)
    is_complete = False
    for row in rows.select_related("host").order_by("attached_at"):
        since, reset_at = row.attached_at or row.created_at, branch.last_reset_at
        # Attached before a restore or reset, it has the log of the data that was replaced. That may
        # seem to go on with the new data, if both came from the same parent.
        is_former = bool(reset_at and since < reset_at)
        if is_former and _is_newer(fetched, since):
            continue
        log = _log(row, host, place) if fetched.moment is not None else None
        if log is None or fetched.moment is None:
            continue
        with step("adding_received_log"):
            has_added = add_received(fetched.moment.chain, log)
        if has_added:
            stop = fetched.moment.chain.copied
            fetched = replace(fetched, moment=replace(fetched.moment, stop=stop))
            is_complete |= bool(row.attached_at) and row.lost_at is None and not is_former
    return fetched, is_complete


def _is_newer(fetched: Fetched, since: datetime) -> bool:
    """Whether it is the data of after a reset, and not what the store had of the data before:
    nothing newer is known, and its base is younger than the receiver of the old data's log."""
    return bool(fetched.moment and fetched.moment.base.at > since and not fetched.shortfall)


def _log(row: LogReceiver, host: Host, place: Path) -> Path | None:
    """The directory with the received segments; None if they are lost."""
    if row.host_id == host.id:
        receivewal.end(row.id)
        found = receivewal.log_of(row.id)
        return found if found.exists() else None
    if row.host.lost_at is not None:
        return None
    target = place / row.id
    target.mkdir()
    try:
        with closing(Link(host_links().connect(row.host))) as link:
            _fetch(link, row.id, target)
    except MoveRefused:
        return None
    except LinkBroken as error:
        raise StoreUnusable(
            f'the host "{row.host_id}", which has received the newest log, does not answer: {error}'
        ) from error
    return target


def _fetch(link: Link, receiver_id: str, target: Path) -> None:
    link.send(received=receiver_id)
    while "done" not in (message := link.receive()):
        name = str(message.get("segment"))
        if not SEGMENT.fullmatch(name.removesuffix(PARTIAL)):
            raise LinkBroken("the other host has sent something else than log")
        with (target / name).open("wb") as file:
            while piece := link.receive_bytes():
                file.write(piece)


def add_received(chain: Chain, received: Path) -> bool:
    """Let the chain go on with the segments in the directory, up to the end of the last one, behind
    whose last record are only zeros. Returns False, and changes nothing, if they do not go on with
    it. Raises OSError."""
    end = segment_start(chain.copied)
    with open_directory(received) as source:
        known = {name.removesuffix(PARTIAL): name for name in segments_in(source)}
        if not _continues(chain, source, known):
            return False
        while (name := segment_name(chain.timeline, end)) in known:
            content = _content(source, known[name])
            if not _is_of(chain, source, known[name]) or len(content) != SEGMENT_SIZE:
                break
            (chain.log / name).write_bytes(content)
            write_sum(chain.log / name)
            end += SEGMENT_SIZE
    chain.copied = max(chain.copied, end)
    return True


def _continues(chain: Chain, source: int, known: dict[str, str]) -> bool:
    """Whether the bytes before the chain's end are the same in both, or between two segments the
    records follow each other: branches that were created from one template have segments of the
    same names."""
    name = segment_name(chain.timeline, chain.copied)
    if name not in known or not _is_of(chain, source, known[name]):
        return False
    inside = chain.copied % SEGMENT_SIZE
    if inside == 0:
        return _follows(chain, name, _content(source, known[name])[:PAGE])
    first = inside - min(inside, PAGE)
    ours = (chain.log / name).read_bytes()[first:inside]
    return ours == _content(source, known[name])[first:inside]


def _follows(chain: Chain, name: str, page: bytes) -> bool:
    """Whether the records of the segment, which begins with the page, follow the chain's last."""
    (chain.log / name).write_bytes(page)
    try:
        with open_directory(chain.log) as log:
            start, end = chain.copied - SEGMENT_SIZE, chain.copied + PAGE
            for _ in records_of(log, chain.timeline, NO_MANAGER, start=start, end=end):
                pass
    except LogUnreadable:
        return False
    finally:
        (chain.log / name).unlink()
    return True


def _is_of(chain: Chain, source: int, name: str) -> bool:
    return is_segment_of(source, name, chain.timeline, chain.system_id)


def _content(source: int, name: str) -> bytes:
    with os.fdopen(opened(name, source), "rb") as file:
        return file.read(SEGMENT_SIZE)
