"""A request costs the same number of queries however much there is."""

import pytest
from django.db import connection
from django.test import Client as DjangoClient
from django.test.utils import CaptureQueriesContext

from controlplane.models import Account, Branch, Endpoint, Operation, Project, Region
from tests.controlplane.rows import make_project

# The key, the project, and what was asked for. One more tells which branches or endpoints
# have something pending.
BUDGET = {
    "": 2,
    "/endpoints": 3,
    "/endpoints/{endpoint}": 4,
    "/branches": 4,
    "/branches/{branch}": 4,
    "/branches/{branch}/endpoints": 4,
    "/operations": 3,
    "/operations?limit=1": 3,
    "/operations/{operation}": 3,
}


def queries(api: DjangoClient, path: str) -> int:
    with CaptureQueriesContext(
        connection,
    ) as captured:
        response = api.get(f"/api/v2/projects{path}")
    assert response.status_code == 200, response.content
    return len(captured)


@pytest.mark.parametrize("size", [3, 30])
@pytest.mark.parametrize("path", BUDGET)
def test_reading_a_projects_parts(
    api: DjangoClient, account: Account, region: Region, path: str, size: int
) -> None:
    project = make_project(account, region, size=size)
    filled = path.format(
        endpoint=Endpoint.objects.filter(project=project)[0].id,
        branch=Branch.objects.filter(project=project)[0].id,
        operation=Operation.objects.filter(project=project)[0].id,
    )
    assert queries(api, f"/{project.id}{filled}") == BUDGET[path]


@pytest.mark.parametrize("size", [3, 30])
def test_listing_projects(api: DjangoClient, account: Account, region: Region, size: int) -> None:
    for _ in range(size):
        make_project(account, region)
    assert queries(api, "?limit=400") == 2
    middle = Project.objects.order_by("created_at")[size // 2]
    assert queries(api, f"?limit=400&cursor={middle.id}") == 3
