"""A host that has no PgBouncer: a request for pooling is refused, all else works."""

import json

from django.test import Client as DjangoClient

from controlplane.models import Account, Endpoint, Host
from tests.controlplane.rows import make_project


def test_enabling_pooling_is_refused(api: DjangoClient, account: Account, host: Host) -> None:
    endpoint = Endpoint.objects.get(project=make_project(account, host))
    path = f"/api/v2/projects/{endpoint.project_id}/endpoints/{endpoint.id}"
    body = json.dumps({"endpoint": {"pooler_enabled": True}})

    response = api.patch(path, body, content_type="application/json")

    assert response.status_code == 422
    assert "PgBouncer is not installed" in response.json()["message"]
    endpoint.refresh_from_db()
    assert endpoint.pooler_enabled is False
    other = api.patch(path, '{"endpoint": {"name": "x"}}', content_type="application/json")
    assert other.status_code == 200
