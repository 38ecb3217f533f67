"""Which endpoint a client's name leads to, and how its password is checked."""

from functools import partial

from controlplane.models.connecting import find_route
from controlplane.proxy.access_rules import parse_rules
from controlplane.proxy.control_database import ControlDatabase
from controlplane.proxy.directory import Route
from controlplane.proxy.memory import Memory


class Routes:
    def __init__(self, database: ControlDatabase, region: str) -> None:
        self._database = database
        self._region = region
        self.memory: Memory[Route | None] = Memory(is_silent=lambda: database.is_silent)

    async def find(self, endpoint_id: str, role: str) -> Route | None:
        """See `Directory.route`."""
        return await self.memory.read(
            endpoint_id,
            role,
            partial(self._ask, endpoint_id, role),
            # Names that exist not are not kept: anybody may ask for any number of them.
            lasts=lambda route: route is not None and route.verifier is not None,
        )

    async def _ask(self, endpoint_id: str, role: str) -> Route | None:
        row = await self._database.ask(
            partial(find_route, endpoint_id=endpoint_id, role=role, region=self._region)
        )
        if row is None:
            return None
        return Route(
            endpoint_id=row.endpoint_id,
            account_id=row.account_id,
            account_connections=row.connections,
            verifier=row.verifier,
            disabled=row.disabled,
            always_pooled=row.pooler_enabled,
            rules=parse_rules(row.access, is_protected=row.protected),
        )
