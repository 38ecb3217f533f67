"""Ends the poolers that have no client. The next pooled client starts the pooler again; the compute
keeps running meanwhile."""

import time

from controlplane.compute import compute
from controlplane.compute.host.filesystem import LockTimeout, lock_branches, pooler_lock
from controlplane.compute.pooler import client_counts, has_pooler, stop_unused
from controlplane.compute.processes.session import socket_dir
from controlplane.metrics import figures
from controlplane.models import Endpoint, EndpointState, Host
from controlplane.operations.locks import apart

# Seconds that a pooler keeps running without a client, so that a client that makes many short
# connections does not wait for a pooler's start each time.
UNUSED_TIMEOUT = 10.0

# For each endpoint, since when its pooler has been seen without a client (monotonic clock).
_unused_since: dict[str, float] = {}


def end_unused_poolers(host: Host) -> None:
    """Stop the poolers that no client has used for a while. Clients that a proxy has parked are not
    connected to their pooler, so they do not count."""
    now, clients = time.monotonic(), client_counts()
    poolers = {
        endpoint_id: place
        for endpoint_id in compute.endpoints_with_sockets()
        if has_pooler(place := socket_dir(endpoint_id))
    }
    figures.POOLERS.set(len(poolers))
    figures.POOLER_CLIENTS.set(clients.total())
    unused = {endpoint_id for endpoint_id, place in poolers.items() if not clients[place]}
    for used in _unused_since.keys() - unused:
        del _unused_since[used]
    for endpoint_id in unused:
        _unused_since.setdefault(endpoint_id, now)
    due = [one for one, since in _unused_since.items() if now - since >= UNUSED_TIMEOUT]
    if not due:
        return
    active = Endpoint.objects.filter(
        host=host, id__in=due, deleted_at=None, current_state=EndpointState.ACTIVE
    )
    for endpoint_id, branch_id in active.values_list("id", "branch_id"):
        try:
            # The compute's directories are untrusted: an error in one must not affect the others.
            with (
                apart(endpoint_id),
                lock_branches(branch_id, pooler_lock(branch_id), timeout=0),
            ):
                stop_unused(branch_id, socket_dir(endpoint_id))
        except LockTimeout:
            continue  # an operation works on the branch; the next round looks again
        del _unused_since[endpoint_id]
