"""New projects go to the host of their region with the most room."""

import uuid
from typing import Any

import pytest
from django.test import Client as DjangoClient
from django.utils import timezone

from controlplane.models import Account, Branch, Endpoint, Host, Operation, Project, Region
from controlplane.services.rules.placement import choose_host
from tests.controlplane.rows import make_host

GB = 1 << 30
# Processors, and gigabytes of memory and of disk.
SIZES = {
    "a": (4, 16, 200),
    "b": (8, 32, 400),
    "c": (8, 32, 400),
    "d": (16, 64, 800),
    "e": (2, 8, 100),
}


def sized(name: str, cpus: int, memory: int, disk: int, **fields: Any) -> Host:
    """A host of the region `eu`."""
    room = {
        "cpus": cpus,
        "cpu_load": 0.0,
        "memory_bytes": memory * GB,
        "disk_bytes": disk * GB,
        "disk_free_bytes": disk * GB,
        "disk_reserve_bytes": disk * GB // 20,
    }
    return make_host(name, "eu", **{"proxy_seen_at": timezone.now(), **room, **fields})


def chosen(**wanted: Any) -> str:
    return choose_host(Region.objects.get(id="eu"), **wanted)[0].id


def place_project(account: Account) -> str:
    """Create the rows of a project whose endpoint starts. Returns its host."""
    host = chosen()
    project = Project.objects.create(
        account=account, region_id="eu", host_id=host, name="x", pg_version=18
    )
    branch = Branch.objects.create(project=project, name="main", current_state="ready")
    Endpoint.objects.create(
        project=project, branch=branch, current_state="active", autoscaling_limit_max_cu=0.25
    )
    return host


class TestNever:
    @pytest.fixture(autouse=True)
    def _small(self, db: None) -> None:
        sized("small", 1, 1, 10)

    @pytest.mark.parametrize(
        "fields",
        [
            {"draining": True},
            {"worker_seen_at": None},
            {"proxy_seen_at": None},
            {"version": "0.0.1"},
            {"disk_free_bytes": 1},
        ],
        ids=lambda fields: "".join(fields),
    )
    def test_a_host_that_cannot_take_it(self, fields: dict[str, Any]) -> None:
        sized("large", 64, 256, 4000, **fields)
        assert chosen() == "small"

    def test_a_host_that_lacks_what_it_needs(self) -> None:
        sized("old", 64, 256, 4000, pg_version=15, pg_versions=[15], pooling_available=True)
        assert chosen(pg_version=18) == "small"
        assert chosen(pg_version=15) == chosen() == "old"
        assert choose_host(Region.objects.get(id="eu"))[1] == 15
        sized("open", 64, 256, 8000, outbound_unfiltered="nftables is not installed")
        assert chosen(needs_filter=True, pg_version=18) == "small"
        assert chosen(needs_pooler=True) == "old"


def test_starts_count_before_they_have_finished(account: Account) -> None:
    """Otherwise projects that are created together would all go to one host."""
    for name in ("a", "b"):
        sized(name, 8, 32, 400)
    assert place_project(account) == "a"
    assert chosen() == "b"
    endpoint = Endpoint.objects.get()
    Endpoint.objects.update(current_state="init")
    Operation.objects.create(
        project=endpoint.project,
        endpoint=endpoint,
        action="start_compute",
        status="running",
        chain=uuid.uuid4(),
        resources=[],
    )
    assert chosen() == "b"
    Operation.objects.update(status="failed")
    assert chosen() == "a"


def test_the_weights_decide_what_counts(db: None, settings: Any) -> None:
    sized("disk", 2, 8, 4000, cpu_load=1.9)
    sized("cpu", 64, 8, 100, disk_free_bytes=20 * GB)
    settings.PLACEMENT = {"disk": 1.0, "memory": 0.0, "cpu": 0.0}
    assert chosen() == "disk"
    settings.PLACEMENT = {"disk": 0.0, "memory": 0.0, "cpu": 1.0}
    assert chosen() == "cpu"


def test_a_project_gets_the_roomiest_host_by_the_api(
    api: DjangoClient, account: Account, host: Host
) -> None:
    Region.objects.update(default=False)
    for name, size in SIZES.items():
        sized(name, *size, cpu_load=size[0] / 2 if name != "c" else 0.0)
    Region.objects.filter(id="eu").update(default=True)
    answer = api.post("/api/v2/projects", {"project": {}}, content_type="application/json")
    assert answer.status_code == 201
    assert answer.json()["project"]["region_id"] == "eu"
    assert Project.objects.get().host_id == "c"
