"""Branches and computes of the test's own process, without a service."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from controlplane.compute import compute
from controlplane.compute.data import branch_data
from controlplane.compute.data.branch_data import branch_dir, data_dir
from controlplane.compute.data.state_directory import prepare_state_directory


@contextmanager
def own_branch(branch_id: str) -> Iterator[Path]:
    """Yields the directory of a new branch in this process's own state directory."""
    prepare_state_directory()
    branch_data.create_from_template(branch_id)
    try:
        yield branch_dir(branch_id)
    finally:
        compute.remove(branch_id)


def postmaster_of(branch_id: str) -> psutil.Process:
    return psutil.Process(int((data_dir(branch_id) / "postmaster.pid").read_text().split()[0]))
