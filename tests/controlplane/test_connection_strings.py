"""Connection strings that the API returns, by the region's address and the proxy's TLS settings."""

from typing import Any

import pytest

from controlplane.models import Database, Endpoint, Project, Region, Role
from controlplane.services.connections import connection_to


def uri_at(address: str, *, pooled: bool = False) -> str:
    region = Region(id="here", host=address, port=6432)
    endpoint = Endpoint(id="ep-a-b-1", project=Project(region=region))
    return connection_to(
        endpoint, Role(name="ann"), Database(name="shop"), password="p@", pooled=pooled
    ).uri


def test_on_this_machine_tls_is_left_to_the_driver() -> None:
    uri = "postgresql://ann:p%40@localhost:6432/shop?options=endpoint%3Dep-a-b-1"
    assert uri_at("localhost") == uri_at("dev.localhost") == uri
    assert uri_at("localhost", pooled=True) == f"{uri}-pooler"


@pytest.mark.parametrize("allowed", ["loopback", "always", "never"])
def test_on_another_host_tls_is_required(settings: Any, allowed: str) -> None:
    settings.PROXY_PLAIN_CONNECTIONS = allowed
    uri = uri_at("db.example.com", pooled=True)
    assert uri == "postgresql://ann:p%40@ep-a-b-1-pooler.db.example.com:6432/shop?sslmode=require"


def test_tls_is_required_if_the_proxy_requires_it(settings: Any) -> None:
    settings.PROXY_PLAIN_CONNECTIONS = "never"
    uri = uri_at("localhost")
    assert uri.endswith("@localhost:6432/shop?sslmode=require&options=endpoint%3Dep-a-b-1")
