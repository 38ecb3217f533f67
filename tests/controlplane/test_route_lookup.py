"""What the proxy asks the database about the names that clients give."""

import asyncio
from typing import Any

from controlplane.proxy.directory.route_lookup import RouteLookup

MISSING = "ep-not-there-000002"


class Questions:
    """A database that has no endpoint, and remembers for which roles it was asked."""

    is_unavailable = False

    def __init__(self) -> None:
        self.roles: list[str] = []

    async def ask(self, find: Any) -> None:
        self.roles.append(find.keywords["role"])


def test_a_name_is_looked_up_before_its_role_is_known() -> None:
    """If a proxy knew the hosts only of names that are in use, the handshakes that it passes on
    would tell which names these are."""

    async def go() -> None:
        database: Any = Questions()
        unused: Any = None
        lookup = RouteLookup(database, unused, unused, unused)
        lookup.cache.resume()
        for _ in range(2):
            assert await lookup.of_any_role(MISSING) is None
        assert database.roles == [""]
        # What was read for no role says nothing of a role.
        assert await lookup.find(MISSING, "alice") is None
        lookup.cache.invalidate(MISSING)
        assert await lookup.find(MISSING, "alice") is None
        assert await lookup.of_any_role(MISSING) is None
        assert database.roles == ["", "alice", "alice"]

    asyncio.run(go())
