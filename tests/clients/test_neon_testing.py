"""`neon-testing`, unmodified, which gives each file of a project's tests its own branch."""

import pytest

from tests.clients import nodejs
from tests.selection import first_of
from tests.support.place import Place
from tests.support.waiting import wait_for


@pytest.mark.parametrize("endpoint", first_of(["pooler", "direct"]))
def test_each_file_of_tests_gets_a_branch(node: None, shop: Place, endpoint: str) -> None:
    with shop.connect() as connection:
        connection.execute("DROP TABLE IF EXISTS fruit; CREATE TABLE fruit (name text)")
        connection.execute("INSERT INTO fruit VALUES ('quince')")
    ran = nodejs.run(
        *("node", nodejs.program("vitest"), "run"),
        *("--root", nodejs.HERE / "neon_testing"),
        environment={
            "API_KEY": shop.client.key,
            "API_URL": shop.client.api_url,
            "PROJECT_ID": shop.id,
            "ENDPOINT_TYPE": endpoint,
        },
    )
    assert ran.status == 0, ran.output + ran.told
    assert "3 passed" in ran.output
    assert shop.query("SELECT count(*) FROM fruit") == (1,)
    wait_for(lambda: names(shop) == {"main"}, "the end of its branch")


def names(shop: Place) -> set[str]:
    return {one["name"] for one in shop.client.get(shop.path + "/branches")["branches"]}
