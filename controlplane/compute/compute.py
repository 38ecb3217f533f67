"""A compute: the Postgres process that serves an endpoint on its branch.

The operations' actions call these functions. Each may be called again after a crash at any point
and then ends in the same state. Callers hold the branch's lock (`lock_branches`).
"""

import logging
import os
import re
import threading
from contextlib import suppress
from pathlib import Path

from django.conf import settings

from controlplane.compute import pooler
from controlplane.compute.data import branch_data
from controlplane.compute.data.branch_data import branch_dir, data_dir
from controlplane.compute.data.outbound import hold_compute
from controlplane.compute.data.state_directory import access_files
from controlplane.compute.extensions import offered_extensions
from controlplane.compute.host import listener_socket
from controlplane.compute.host.accounts import account_of
from controlplane.compute.host.binaries import MAJOR, WHAT_TO_DO, major_of, majors, note_major
from controlplane.compute.host.filesystem import (
    forget_lock,
    lock_branches,
    pooler_lock,
    remove_tree,
)
from controlplane.compute.host.patience import OutOfPatience
from controlplane.compute.host.steps import step
from controlplane.compute.observation import answers
from controlplane.compute.pooler import (
    hide_socket,
    is_hidden,
    renew_servers,
    restore_socket,
    set_pooler_settings,
    stop_pooler,
    wait_until_left,
)
from controlplane.compute.processes.account_processes import (
    end_account_of,
    has_processes,
    remove_objects_of,
)
from controlplane.compute.processes.limits import (
    end_group,
    forget_limits,
    limit_compute,
    max_processes,
)
from controlplane.compute.processes.occupants import (
    end_lease,
    end_processes_in,
    is_leased,
    lease,
    leased_branches,
    wait_for_lease,
)
from controlplane.compute.processes.process import (
    MAX_STOP_TIME,
    StartFailed,
    StopFailed,
    check_configuration,
    clear_stale_pid_file,
    open_postmaster,
    reload_postgres,
    socket_dir_of,
    start_postgres,
    stop_postgres,
)
from controlplane.compute.processes.session import session, socket_dir
from controlplane.compute.settings.configuration import ComputeSpec, render_configuration
from controlplane.fleet.receivers.standby import CONFIGURATION, configuration_lock, standby_line

log = logging.getLogger(__name__)

# Seconds in which no pooled client has left; then the pooler is stopped anyway.
LEAVE_TIMEOUT = 1.0
# See `possibly_running`. None until the first look at all branches.
_may_run: set[str] | None = None
# The branches on which a process worked at the last look at all branches.
_working: frozenset[str] = frozenset()
_changing_may_run = threading.Lock()
ENDPOINT_ID = re.compile("ep-[a-z0-9-]+")
# Followed by the branch's id, it stands for an endpoint while the platform reads a branch without
# one.
INTERNAL_PREFIX = "ep-r-"


class OtherMajorVersion(Exception):
    """The branch's data belongs to another major version of Postgres; the message says which."""


class ConfigurationRefused(Exception):
    """Postgres does not accept a configuration; the message is Postgres's own."""


def internal_id(branch_id: str) -> str:
    """The name in place of an endpoint's id for a compute that only the platform uses."""
    return INTERNAL_PREFIX + branch_id


def start(spec: ComputeSpec, *, standby: str = "") -> None:
    """Make the branch's Postgres run for the endpoint, ready for connections. `standby` is the line
    of its configuration that names the receiver of the log.

    Raises branch_data.NoSuchBranchData, process.StartFailed, ConfigurationRefused,
    OtherMajorVersion, outbound.OutboundNotBlocked.
    """
    data = data_dir(spec.branch_id)
    if not data.exists():
        raise branch_data.NoSuchBranchData(f"the branch {spec.branch_id} has no data")
    if running_endpoint(spec.branch_id) == spec.endpoint_id and answers(spec.endpoint_id):
        accept_clients(spec.endpoint_id)
        return
    refuse_other_major(data)
    stop(spec.branch_id)
    config = write_configuration(spec, CONFIGURATION, standby)
    try:
        _launch(spec)
    except StartFailed as error:
        # Only checked now, as the check costs time: did Postgres refuse the settings?
        if complaint := check_configuration(data, config):
            raise ConfigurationRefused(complaint) from error
        raise
    set_pooler_settings(spec.branch_id, spec.pgbouncer_settings)


def refuse_other_major(data: Path) -> None:
    """Raise OtherMajorVersion if this host has no programs that work on the data."""
    major, ours = major_of(data), majors()
    if major not in ours:
        raise OtherMajorVersion(
            f"the branch's data is of Postgres {major}, and this host has "
            f"{', '.join(map(str, ours))}: its operator must {WHAT_TO_DO}"
        )


def stop(branch_id: str, *, timeout: float = MAX_STOP_TIME) -> None:
    """End all processes that work in the branch's directory. Clients get SQLSTATE 57P01. Postgres
    may take `timeout` seconds to shut down.

    Raises process.StopFailed, patience.OutOfPatience.
    """
    endpoint_id = running_endpoint(branch_id)
    if endpoint_id:
        disconnect_clients(branch_id, endpoint_id)
    stop_pooler(branch_id)
    try:
        stop_postgres(data_dir(branch_id), timeout=timeout)
    except (StopFailed, OutOfPatience) as error:
        log.warning("compute killed", extra={"branch": branch_id, "error": str(error)})
        kill(branch_id, endpoint_id)
    _end_leftovers(branch_id, endpoint_id)
    if endpoint_id:
        forget_endpoint(endpoint_id)


def kill(branch_id: str, endpoint_id: str | None) -> None:
    """End at once all that the endpoint's compute has started on the branch, even if its Postgres
    is gone. Needs no lock: to the holder of the branch's lock, the compute has crashed. Raises
    StopFailed."""
    place = branch_dir(branch_id)
    if endpoint_id is not None:
        end_group(endpoint_id)
    # A list of processes misses those that are forked meanwhile; the group and the account do not.
    if has_processes(place):
        end_account_of(place)
    end_processes_in(place)


def disconnect_clients(
    branch_id: str, endpoint_id: str, *, stall_timeout: float = LEAVE_TIMEOUT
) -> None:
    """The first part of every end of a compute: let the pooled clients go, then refuse new clients.
    The pooler may need new connections into the compute until its clients have left. They may stay
    for `stall_timeout` seconds while none of them leaves."""
    disconnect_pooled_clients(branch_id, endpoint_id, stall_timeout=stall_timeout)
    refuse_new_clients(branch_id, endpoint_id)


def refuse_new_clients(branch_id: str, endpoint_id: str) -> None:
    """Refuse new client connections into the compute; the clients wait for its next start. No
    pooler is being started after this."""
    with lock_branches(pooler_lock(branch_id)):
        listener_socket.hide(socket_dir(endpoint_id))


def accepts_clients(branch_id: str, endpoint_id: str) -> bool:
    """Whether the branch's compute runs for the endpoint, and neither its listener socket nor its
    pooler's is hidden. This stays true as long as the caller holds the pooler's lock and the
    compute runs."""
    place = socket_dir(endpoint_id)
    return (
        running_endpoint(branch_id) == endpoint_id
        and os.path.lexists(place / listener_socket.SOCKET)
        and not is_hidden(branch_id, place)
    )


def accept_clients(endpoint_id: str) -> None:
    """Undo what refuses new clients of the compute and its pooler, because the compute keeps
    running."""
    listener_socket.restore(socket_dir(endpoint_id))
    restore_socket(socket_dir(endpoint_id))


def disconnect_pooled_clients(
    branch_id: str, endpoint_id: str, *, stall_timeout: float = LEAVE_TIMEOUT
) -> bool:
    """Refuse new pooled clients, and wait until no proxy has a connection to the endpoint's pooler.
    Once told that the compute will stop, a proxy closes each connection on which its client has
    nothing under way. False if that takes too long: a client is in a transaction, or a proxy
    hangs."""
    with lock_branches(pooler_lock(branch_id)):
        hide_socket(socket_dir(endpoint_id))
    return wait_until_left(socket_dir(endpoint_id), stall_timeout=stall_timeout)


def remove(branch_id: str) -> None:
    """End all processes that work on the branch or run under its account, and remove all that the
    branch has on this host.

    Raises what `stop` raises.
    """
    clear(branch_id)
    forget_lock(branch_id)


def clear(branch_id: str) -> None:
    """As `remove`, for a caller that makes the branch anew: its lock holds on."""
    stop(branch_id)
    end_account_of(branch_dir(branch_id))
    branch_data.remove(branch_id)


def forget_endpoint(endpoint_id: str) -> None:
    """Remove what an endpoint's compute leaves outside the branch, once it has ended. The socket
    directory goes last: as long as it exists, the rounds look for leftovers again."""
    if forget_limits(endpoint_id):
        remove_tree(socket_dir(endpoint_id))


def reconfigure(spec: ComputeSpec) -> None:
    """Make the endpoint's compute match `spec`, without a restart if Postgres allows that.

    If Postgres refuses, the compute keeps running, or starts again, as it was. Raises
    ConfigurationRefused with Postgres's words, and what `start` raises.
    """
    if running_endpoint(spec.branch_id) != spec.endpoint_id:
        start(spec)
        return
    data, current = data_dir(spec.branch_id), _config_file(spec.branch_id)
    with step("configuring") as part:
        proposed = write_configuration(spec, "proposed.conf")
        if complaint := check_configuration(data, proposed):
            raise ConfigurationRefused(complaint)
        with configuration_lock(spec.branch_id):
            standby = standby_line(spec.branch_id)
            proposed = write_configuration(spec, "proposed.conf", standby)
            # A copy: after a rename, a crash would leave no configuration at all.
            text = current.read_text()
            previous = branch_data.write_branch_file(spec.branch_id, "previous.conf", text)
            proposed.replace(current)
        reload_postgres(data)
        part.detail["restart"] = _needs_restart(spec)
    if not part.detail["restart"]:
        set_pooler_settings(spec.branch_id, spec.pgbouncer_settings)
        renew_servers(spec.branch_id, socket_dir(spec.endpoint_id))
        return
    stop(spec.branch_id)
    try:
        # A restart ends the receiver's connection. Commits wait until another one is attached.
        start(spec, standby=standby_line(spec.branch_id))
    except (StartFailed, ConfigurationRefused) as error:
        previous.replace(current)
        _launch(spec)
        raise ConfigurationRefused(str(error)) from error


def running_endpoint(branch_id: str) -> str | None:
    """The id of the endpoint that this branch's Postgres runs for; None if none runs."""
    found = socket_dir_of(data_dir(branch_id))
    return found.name if found and ENDPOINT_ID.fullmatch(found.name) else None


def open_run(branch_id: str, endpoint_id: str) -> int | None:
    """Open a descriptor that becomes readable once this run of the compute has ended (see
    `process.open_postmaster`). None if no compute runs on the branch for the endpoint."""
    if running_endpoint(branch_id) != endpoint_id:
        return None
    return open_postmaster(data_dir(branch_id))


def running_branches(*, leased_only: bool = False) -> dict[str, str | None]:
    """Every branch of this host on which a process works, and the endpoint that its Postgres runs
    for: None if only a start, or the leftovers of a dead Postgres, work there.

    If `leased_only`, what has no lease is left out: processes that this release did not start. That
    costs nothing for idle branches.
    """
    found: dict[str, str | None] = dict.fromkeys(leased_branches())
    for branch_id in list(found) if leased_only else _with_pid_file():
        if endpoint_id := running_endpoint(branch_id):
            found[branch_id] = endpoint_id
    return found


def _with_pid_file() -> list[str]:
    """The branches on which a Postgres runs or has died. Looks at 10,000 in 30 ms."""
    with suppress(FileNotFoundError), os.scandir(Path(settings.STATE_DIR) / "branches") as all_of:
        return [
            one.name
            for one in all_of
            if one.name.startswith("br-") and os.path.lexists(f"{one.path}/data/postmaster.pid")
        ]
    return []


def look_at_all(*, leased_only: bool = False) -> dict[str, str | None]:
    """Do the same, and note what was found for `possibly_running`."""
    global _may_run, _working
    with _changing_may_run:
        before = set(_may_run or ())
    found = running_branches(leased_only=leased_only)
    with _changing_may_run:
        started_meanwhile = (_may_run or set()) - before
        _may_run = started_meanwhile | {one for one in found.values() if one}
        _working = frozenset(found)
    return found


def possibly_running() -> set[str]:
    """The endpoints whose computes may run on this host: those that the last look at all branches
    found, which a round repeats every two seconds, and those that this process has started since.
    By their ids, rounds find the rows of running endpoints however many endpoints run on other
    hosts, and send no statement while none runs here."""
    if _may_run is None:
        look_at_all()
    with _changing_may_run:
        return set(_may_run or ())


def any_possibly_running() -> bool:
    """Whether there is any such endpoint, or a branch on which a process works. Reads nothing."""
    return _may_run is None or bool(_may_run or _working)


def working_branches() -> frozenset[str]:
    """The branches on which a process worked at the last look at all branches."""
    return _working


def let_proxy_in() -> None:
    """Let the proxy's account connect to the computes and poolers that run already."""
    for directory in Path(settings.SOCKET_DIR).glob("ep-*"):
        # It may be removed at this moment.
        with suppress(OSError):
            listener_socket.let_proxy_in(
                directory,
                (listener_socket.SOCKET, listener_socket.HIDDEN_SOCKET, MAJOR, *pooler.SOCKETS),
            )


def endpoints_with_sockets() -> set[str]:
    """The endpoints with a socket directory on this host, whether they run or not."""
    return {directory.name for directory in Path(settings.SOCKET_DIR).glob("ep-*")}


def _launch(spec: ComputeSpec) -> None:
    """Start the branch's Postgres with its present configuration file."""
    data = data_dir(spec.branch_id)
    sockets = _make_socket_dir(spec)
    clear_stale_pid_file(data, sockets=sockets)
    # Left by a compute that died. Without an account of its own, only the group finds it.
    end_group(spec.endpoint_id)
    note_major(sockets, major_of(data), account_of(branch_dir(spec.branch_id)))
    hold_compute(spec.branch_id, closed=spec.blocks_outbound)
    with lease(spec.branch_id) as inherited:
        try:
            start_postgres(
                data,
                _config_file(spec.branch_id),
                branch_dir(spec.branch_id) / "postgres.log",
                on_spawn=lambda pid: limit_compute(spec.endpoint_id, pid, max_cu=spec.max_cu),
                lease=inherited,
                most_processes=max_processes(spec.max_cu),
            )
        except BaseException:
            end_started(spec.branch_id, spec.endpoint_id)
            # The endpoint may be deleted by now, and its directory is what leads to its group.
            forget_limits(spec.endpoint_id)
            raise
    with _changing_may_run:
        if _may_run is not None:
            _may_run.add(spec.endpoint_id)


def end_started(branch_id: str, group: str) -> bool:
    """End all that a compute of the branch has started: by its control group, or else by its
    account. True if it was by the group. Raises StopFailed."""
    if end_group(group):
        return True
    end_account_of(branch_dir(branch_id))
    return False


def _end_leftovers(branch_id: str, endpoint_id: str | None) -> None:
    """End what is left of the branch's compute after its Postgres ended: all that it has started,
    and what killed computes and failed starts left.

    Nothing is left, and this is quick, if no Postgres ran for an endpoint, the lease is free and
    there is no postmaster.pid.
    """
    in_group = endpoint_id is not None and end_started(branch_id, endpoint_id)
    has_file = os.path.lexists(data_dir(branch_id) / "postmaster.pid")
    # Processes that were killed by their group may still be about to end.
    if has_file or (not wait_for_lease(branch_id) if in_group else is_leased(branch_id)):
        end_processes_in(branch_dir(branch_id))
        clear_stale_pid_file(data_dir(branch_id))
        end_account_of(branch_dir(branch_id))
    if not wait_for_lease(branch_id):
        log.warning("lease held by no process", extra={"branch": branch_id})
    remove_objects_of(branch_dir(branch_id))
    end_lease(branch_id)


def _needs_restart(spec: ComputeSpec) -> bool:
    """True if a setting that was just reloaded takes effect only after a restart.

    The reload is a signal. The postmaster handles it before it serves a new connection, so the new
    session's backend starts with the reloaded settings.
    """
    with session(socket_dir(spec.endpoint_id)) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_settings WHERE pending_restart"
        ).fetchone()
    return row != (0,)


def write_configuration(spec: ComputeSpec, name: str, standby: str = "") -> Path:
    """Write the configuration file `name` into the branch's directory. `standby` is the line that
    names the receiver of the log."""
    major = major_of(data_dir(spec.branch_id))
    text = render_configuration(
        spec,
        major,
        socket_dir=socket_dir(spec.endpoint_id),
        access=access_files(),
        extensions=offered_extensions(major),
    )
    return branch_data.write_branch_file(spec.branch_id, name, text + standby)


def _make_socket_dir(spec: ComputeSpec) -> Path:
    """Make the directory in which the compute listens, for its account and the proxy. If the branch
    has got another account since, the directory is made anew."""
    account = account_of(branch_dir(spec.branch_id))
    place = socket_dir(spec.endpoint_id)
    if place.exists() and place.lstat().st_uid != account.uid:
        remove_tree(place)
    place.mkdir(mode=0o700, exist_ok=True)
    listener_socket.give_sockets(place, account)
    return place


def _config_file(branch_id: str) -> Path:
    return branch_dir(branch_id) / CONFIGURATION
