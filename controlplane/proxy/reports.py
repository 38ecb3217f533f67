"""Reports to the control plane that the proxy runs, and which endpoints clients connected to."""

import asyncio
from datetime import datetime
from functools import partial

from controlplane import clock
from controlplane.models.connecting import report_alive, report_used
from controlplane.proxy.control_database import ControlDatabase
from controlplane.proxy.errors import ControlPlaneSilent

_REPORT_EVERY = 2.0  # seconds


class Reports:
    def __init__(self, database: ControlDatabase, region: str) -> None:
        self._database = database
        self._region = region
        # When a client last connected to each endpoint.
        self._used: dict[str, datetime] = {}

    def note_use(self, endpoint_id: str) -> None:
        self._used[endpoint_id] = clock.now()

    async def run(self) -> None:
        """Reports until cancelled. Reports that the database did not take are sent again later."""
        while True:
            used, self._used = self._used, {}
            try:
                await self._database.ask(partial(report_alive, region=self._region))
                # One by one: a statement that locks only one row cannot cause a deadlock.
                for endpoint_id in list(used):
                    at = used[endpoint_id]
                    await self._database.ask(partial(report_used, endpoint_id=endpoint_id, at=at))
                    del used[endpoint_id]
            except ControlPlaneSilent:
                self._used = {**used, **self._used}
            await asyncio.sleep(_REPORT_EVERY)
