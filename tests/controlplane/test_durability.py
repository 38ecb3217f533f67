"""Commits of a project with the durability "region" wait for a second host. A restore adds the log
that this host has received to what the store has."""

from tests.controlplane.test_taking_over import Region, events, on_second
from tests.controlplane.test_taking_over import region as region
from tests.support.numbers import Numbers
from tests.support.place import Place
from tests.support.waiting import wait_for



def durable(region: Region) -> Place:
    """A project on the second host whose commits wait for the first from its next start on."""
    place = on_second(region)
    place.suspend()
    place.client.patch(place.path, {"project": {"settings": {"durability": "region"}}})
    return place


def reductions(place: Place) -> list[str]:
    return [one["summary"] for one in events(place, "durability.reduced")]


def test_a_lost_host_loses_no_commit(region: Region) -> None:
    place = durable(region)
    writer = Numbers(place, ends_with_service=True)
    with writer.writing():
        wait_for(lambda: len(writer.done_at) > 100, "some rows", timeout=60)
        region.lose()
    print(region.declare_lost())
    region.moved(place)
    assert reductions(place) == []
    found = place.query("SELECT array_agg(number ORDER BY number) FROM numbers")[0]
    assert found[: len(writer.done_at)] == list(range(1, len(writer.done_at) + 1))
    history = place.client.get(place.branch_path(None, "/history"))["history"]
    assert history["lost_seconds"] == 0
    print(len(writer.done_at), found[-1], events(place, "history.lost"))
