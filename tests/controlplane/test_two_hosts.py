"""Two hosts in one region, as real processes: each has its own state directory, worker and proxy,
and they share the metadata."""

from pathlib import Path

import requests

from tests.support.place import Place
from tests.support.second_host import ADDRESS, NAME, placing_on, second_host
from tests.support.stack import Stack


def test_each_project_lives_on_its_host(stack: Stack, state_dir: Path) -> None:
    client = stack.client()
    here = Place.create(stack, client)
    with second_host(stack, state_dir) as second:
        with placing_on(stack, NAME):
            there = Place.create(second.stack, client)
        endpoint = there.client.get(there.endpoint_path())["endpoint"]
        assert endpoint["host"] == f"{there.endpoint_id}.{ADDRESS}"
        assert endpoint["proxy_host"] == ADDRESS
        assert (
            f":{second.stack.proxy_port}/" in there.created["connection_uris"][0]["connection_uri"]
        )
        assert there.is_served(host=endpoint["host"])
        assert second.stack.data_dir(there.branch_id).is_dir()
        assert not stack.data_dir(there.branch_id).exists()
        assert here.is_served()
        _refused_by_the_other_proxy(there, port=stack.proxy_port, host=NAME)
        _refused_by_the_other_proxy(here, port=second.stack.proxy_port, host="local")
        details = requests.get(stack.api_url.replace("/api/v2", "/healthz/details"), timeout=10)
        assert [host["id"] for host in details.json()["hosts"]] == ["local", NAME]
        assert [region["id"] for region in details.json()["regions"]] == ["local"]
        there.done(client.delete(there.path))
    assert here.is_served()


def _refused_by_the_other_proxy(place: Place, *, port: int, host: str) -> None:
    """Only who knows the password learns where the endpoint is."""
    said = str(place.refusal(port=port, tls=False))
    assert f'(the host "{host}")' in said
    assert place.endpoint_id in said
    wrong = str(place.refusal(port=port, tls=False, password="wrong"))
    assert "password authentication failed" in wrong
