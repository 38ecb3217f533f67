"""Stores that hang, and stores that list less than they have."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.history.store.layout import BranchList, read_list
from controlplane.history.store.objects import Store
from tests.controlplane.history.test_history_store import committed, copied_after
from tests.support.faulty_store import FaultyStore
from tests.support.object_store import Bucket, bucket, opened, s3
from tests.support.place import Place
from tests.support.processes import processes_of
from tests.support.service import Service
from tests.support.waiting import load, wait_for

__all__ = ["bucket", "s3"]

pytestmark = pytest.mark.slow


@pytest.fixture
def faulty(bucket: Bucket) -> Iterator[FaultyStore]:
    with FaultyStore(bucket.endpoint).running() as store:
        yield store


@pytest.fixture
def service(state_dir: Path, bucket: Bucket, faulty: FaultyStore) -> Iterator[Service]:
    running = Service(state_dir, **bucket.through(faulty.endpoint).environment)
    yield running
    faulty.turn("")
    running.down()


@pytest.mark.thorough
def test_a_worker_ends_while_the_store_does_not_answer(
    service: Service, faulty: FaultyStore
) -> None:
    place = Place.create(service.stack, service.client)
    first = committed(place, "first")
    wait_for(lambda: copied_after(place, first), "a copy", timeout=90)
    faulty.turn("hanging")
    committed(place, "second")
    wait_for(lambda: any("PUT" in one and "/log/" in one for one in faulty.asked), "a copy of log")
    worker = processes_of(service.stack, "worker")[0]
    worker.terminate()
    began = time.monotonic()
    worker.wait(60)
    assert time.monotonic() - began < 10 * load()


def listed(store: Store, place: Place) -> BranchList:
    """What the store lists of the place's branch."""
    folder = next(name for name in store.names("regions") if place.branch_id in name)
    found = read_list(store, folder.partition(place.branch_id)[0] + place.branch_id)
    assert found is not None
    return found


@pytest.mark.thorough
def test_a_store_that_once_lists_nothing_keeps_what_it_has(
    service: Service, faulty: FaultyStore, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place.create(service.stack, service.client)
    first = committed(place, "first")
    with opened(bucket, monkeypatch) as store:
        wait_for(lambda: copied_after(place, first), "a copy", timeout=90)
        (chain,) = listed(store, place).chains
        # After a failure the lists are read again.
        faulty.turn("away")
        committed(place, "second")
        wait_for(lambda: len(faulty.asked) > 3, "requests to a store that is away")
        faulty.turn("empty")
        wait_for(lambda: asked_twice(faulty, place), "looks at the lists", timeout=90)
        faulty.turn("")
        third = committed(place, "third")
        wait_for(lambda: copied_after(place, third), "a copy", timeout=150)
        found = listed(store, place)
        assert [one.id for one in found.chains] == [chain.id]
        assert found.copied_at
        assert found.copied_at >= third
        # A worker that does not know what was there begins anew.
        faulty.turn("empty")
        service.kill("worker")
        fourth = committed(place, "fourth")
        wait_for(lambda: copied_after(place, fourth), "a copy", timeout=150)
        faulty.turn("")
        at = listed(store, place).copied_at
        assert at
        assert at >= fourth


def asked_twice(faulty: FaultyStore, place: Place) -> bool:
    return sum("list-type" in one and place.branch_id in one for one in faulty.asked) > 1
