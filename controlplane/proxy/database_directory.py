"""The directory of a real region, which reads the control plane's rows and has computes started."""

import asyncio
from collections.abc import Callable
from typing import Any

from controlplane.proxy.changes import Changes
from controlplane.proxy.compute_states import ComputeStates
from controlplane.proxy.control_database import ControlDatabase
from controlplane.proxy.directory import ComputeAddress, Route
from controlplane.proxy.reports import Reports
from controlplane.proxy.routes import Routes
from controlplane.proxy.wakes import Wakes


class DatabaseDirectory:
    """See `directory.Directory`. `run` must go on beside for as long as it is used."""

    def __init__(self, conninfo: str, region: str) -> None:
        self._database = ControlDatabase(conninfo)
        self._routes = Routes(self._database, region)
        states = ComputeStates(self._database)
        self._changes = Changes(self._database, [self._routes.memory, states.memory])
        self._wakes = Wakes(self._database, states, self._changes)
        self._reports = Reports(self._database, region)

    async def run(self, drop: Callable[[str], Any]) -> None:
        """Hear of changes, and report, until cancelled; see `Changes.run` for `drop`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._changes.run(drop))
                await self.ready()
                tasks.create_task(self._reports.run())
        finally:
            self._wakes.close()
            await self._database.close()

    async def ready(self) -> None:
        """Returns once the database has answered and its changes are heard."""
        await self._changes.are_heard.wait()

    async def route(self, endpoint_id: str, role: str) -> Route | None:
        """See `Directory.route`. Raises ControlPlaneSilent."""
        return await self._routes.find(endpoint_id, role)

    async def wake(
        self, endpoint_id: str, *, pooled: bool, refused: ComputeAddress | None = None
    ) -> ComputeAddress:
        """See `Directory.wake`. Raises DisabledEndpointRefused, WakeFailed."""
        self._reports.note_use(endpoint_id)
        return await self._wakes.wake(endpoint_id, pooled=pooled, refused=refused)
