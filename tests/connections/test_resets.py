"""Connecting while a branch's data is replaced by its parent's."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.place import Place


@pytest.mark.parametrize("pooled", [False, True])
def test_a_client_that_connects_during_a_reset_waits_for_it(place: Place, pooled: bool) -> None:
    """Afterwards the branch has other roles of the same names."""
    made = place.done(
        place.client.post(f"{place.path}/branches", {"endpoints": [{"type": "read_write"}]})
    )
    branch_id, endpoint_id = made["branch"]["id"], made["endpoints"][0]["id"]
    host = f"{endpoint_id}{'-pooler' if pooled else ''}.localhost"
    with place.connect(host=host) as connection:
        connection.execute("CREATE TABLE only_here (id int)")
    restore = f"{place.path}/branches/{branch_id}/restore"
    reset = place.client.post(restore, {"source_branch_id": place.branch_id})
    suspend = reset["operations"][0]
    assert suspend["action"] == "suspend_compute"
    place.client.get(f"{place.path}/operations/{suspend['id']}", wait=30)
    with ThreadPoolExecutor(4) as threads:
        found = [
            threads.submit(place.query, "SELECT to_regclass('only_here')", host=host)
            for _ in range(12)
        ]
        assert {one.result() for one in found} == {(None,)}
