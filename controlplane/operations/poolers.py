"""Ends the poolers that have no client: the next pooled client has one started again, beside a
compute that runs on meanwhile."""

import logging
import time

from controlplane.compute import compute
from controlplane.compute.filesystem import LockTimeout, lock_branches
from controlplane.compute.pooler import has_pooler, poolers_clients, stop_unused
from controlplane.compute.session import socket_dir
from controlplane.models import Endpoint, EndpointState, Region

log = logging.getLogger(__name__)

# Seconds that a pooler runs on without a client: one that comes again and again, each time with a
# new connection, does not wait for a start each time.
KEPT_UNUSED = 10.0

# Since when, by this process's clock, the pooler of each endpoint has been seen without a client.
_unused_since: dict[str, float] = {}


def end_unused_poolers(region: Region) -> None:
    """Stop those that no client has used for a while. Of clients that a proxy has parked they know
    nothing."""
    now, clients = time.monotonic(), poolers_clients()
    unused = {
        endpoint_id
        for endpoint_id in compute.endpoints_with_sockets()
        if has_pooler(place := socket_dir(endpoint_id)) and not clients[place]
    }
    for used in _unused_since.keys() - unused:
        del _unused_since[used]
    for endpoint_id in unused:
        _unused_since.setdefault(endpoint_id, now)
    due = [one for one, since in _unused_since.items() if now - since >= KEPT_UNUSED]
    if not due:
        return
    active = Endpoint.objects.filter(
        project__region=region, id__in=due, deleted_at=None, current_state=EndpointState.ACTIVE
    )
    for endpoint_id, branch_id in active.values_list("id", "branch_id"):
        try:
            with lock_branches(branch_id, timeout=0):
                stop_unused(branch_id, socket_dir(endpoint_id))
        except LockTimeout:
            continue  # an operation works on it; it is looked at again soon
        except OSError as error:
            # What a stranger has made of its directories must not keep this from the others.
            log.error("pooler not ended", extra={"endpoint": endpoint_id, "error": str(error)})
        del _unused_since[endpoint_id]
