"""The replication slots of Perch's own, which keep log, follow what the branch's settings say."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.compute import compute
from controlplane.compute.observation import BESIDE_DATABASES
from controlplane.compute.processes.session import session, socket_dir
from controlplane.compute.settings.configuration import HISTORY_SLOT, REGION_SLOT
from controlplane.fleet.receivers.log_receivers import attach
from controlplane.history.keeping import keep
from controlplane.history.local.chain import history_dir
from controlplane.history.local.pulling import hold_log
from tests.controlplane.history.test_keeping import kept
from tests.controlplane.local_compute import BRANCH, ENDPOINT, SPEC, branch, computes

__all__ = ["branch", "computes", "kept"]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def running(branch: Path) -> Path:
    """A compute with both slots, as its settings were before it was suspended."""
    compute.start(SPEC)
    for name in {HISTORY_SLOT, REGION_SLOT} - slots():
        query("SELECT pg_create_physical_replication_slot(%s, true)", name)
    return branch


def query(text: Any, *values: str) -> list[Any]:
    with session(socket_dir(ENDPOINT)) as connection:
        return connection.execute(text, values).fetchall()


def slots() -> set[str]:
    return {name for (name,) in query("SELECT slot_name::text FROM pg_replication_slots")}


def endpoint(*, waits: bool) -> Any:
    project = SimpleNamespace(waits_for_second_host=waits)
    return SimpleNamespace(id=ENDPOINT, branch_id=BRANCH, project=project)


@pytest.mark.usefixtures("running")
def test_a_start_drops_the_slots_that_nothing_wants() -> None:
    hold_log(BRANCH, socket_dir(ENDPOINT))
    assert slots() == {REGION_SLOT}
    attach(endpoint(waits=False))
    assert slots() == set()
    history_dir(BRANCH).mkdir()
    hold_log(BRANCH, socket_dir(ENDPOINT))
    history_dir(BRANCH).rmdir()
    assert slots() == {HISTORY_SLOT}


@pytest.mark.usefixtures("running")
def test_a_slot_whose_history_is_gone_already_is_dropped() -> None:
    keep(BRANCH, 0)
    assert slots() == {REGION_SLOT}


@pytest.mark.usefixtures("running")
def test_log_that_the_platform_keeps_does_not_count_as_the_owners() -> None:
    query("SELECT pg_switch_wal()")
    ((_, held, _),) = query(f"SELECT {BESIDE_DATABASES}")
    assert held == 0
