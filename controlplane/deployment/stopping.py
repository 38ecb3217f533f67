"""Stops the computes of this host, for `up` and for `computes stop`."""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

from controlplane.compute import compute
from controlplane.compute.data.outbound import release_outbound


def stop_computes(branch_ids: Collection[str]) -> None:
    """Stop the computes of the branches, and remove the host's rules about what computes may
    connect to. The worker must not run. Raises process.StopFailed, patience.OutOfPatience."""
    with ThreadPoolExecutor() as threads:
        list(threads.map(compute.stop, branch_ids))
    release_outbound()
